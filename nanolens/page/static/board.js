// The charts of one or several runs: one axis, one zoom, one crosshair for all of them.

import { keep } from "./address.js";
import { Chart, roving } from "./chart.js";
import { announce, button, el, fill, keepingFocus, seldom } from "./dom.js";
import { panelsFor } from "./panels.js";
import { interpolate } from "./source.js";
import { show, t } from "./words.js";

const BUCKETS = 400; // stretches of the x axis that the server keeps extremes of: about one for two pixels
const SPARE = 0.25; // of what is seen, on either side, so that a pan shows something at once
const SMOOTH = [0, 10, 50, 200, 1000];
const AXES = ["step", "tokens", "flops", "time"];
const X_KINDS = { step: "count", tokens: "tokens", flops: "flops", time: "seconds" };

export class Board {
  /** `runs`: id, name, colour, row and (of one alone) view; their curves are fetched here. `state`: what the address says of the view. */
  constructor(source, runs, state = new URLSearchParams()) {
    this.source = source;
    this.all = runs;
    this.runs = []; // those whose curves are there
    this.hasLegend = false; // a legend of its own, outside of the charts
    this.axis = AXES.includes(state.get("x")) ? state.get("x") : "step";
    this.logX = state.has("logx");
    this.logY = state.has("logy");
    this.robust = state.has("robust");
    this.drag = "zoom";
    this.range = rangeIn(state); // none: all
    this.hidden = new Set((state.get("hide") ?? "").split(",").filter(Boolean));
    this.at = null;
    this.forecasts = runs.some((run) => run.row.state === "running");
    this.smooth = state.has("smooth") ? Math.max(0, Math.min(1e6, Math.round(Number(state.get("smooth"))) || 0)) : firstSmoothing(runs);
    this.firstSmooth = firstSmoothing(runs);
    this.charts = new Map();
    this.bar = el("div", { class: "bar", role: "toolbar", "aria-label": t("board.controls") });
    this.where = el("output", { class: "where" });
    this.grid = el("div", { class: "charts" });
    this.element = el("div", { class: "board" }, this.bar, this.grid);
    this.refetchSoon = seldom(150, () => this.load());
    this.drawSoon = seldom(250, () => this.draw());
    this.onResize = seldom(120, () => this.draw());
    this.onPrint = () => this.drawAll();
    this.keepSoon = seldom(200, () => this.keepState());
    this.seen = new Set();
    this.eyes = new IntersectionObserver((entries) => this.looked(entries), { rootMargin: "200px" });
    window.addEventListener("resize", this.onResize);
    window.addEventListener("beforeprint", this.onPrint);
    window.addEventListener("afterprint", this.onPrint);
  }

  close() {
    this.isClosed = true;
    this.eyes.disconnect();
    window.removeEventListener("resize", this.onResize);
    window.removeEventListener("beforeprint", this.onPrint);
    window.removeEventListener("afterprint", this.onPrint);
  }

  /** What is chosen, into the address. */
  keepState() {
    if (this.isClosed || this.source.isFile) return;
    const range = this.range?.map((x) => Number(x.toPrecision(7))).join(":");
    keep({ x: this.axis === "step" ? "" : this.axis, logx: this.logX, logy: this.logY, robust: this.robust, smooth: this.smooth === this.firstSmooth ? "" : String(this.smooth), range, hide: [...this.hidden].join(",") });
  }

  // --- data

  async load() {
    const asked = (this.asked = (this.asked ?? 0) + 1);
    const wanted = this.wanted();
    const answers = await Promise.all(
      this.all.map(async (run) => {
        const found = await this.source.series(run.id, wanted);
        if (asked !== this.asked || this.keys) return found;
        this.have(run, found); // the very first curve is drawn as it comes
        this.draw();
        return found;
      }),
    );
    if (asked !== this.asked) return; // a newer question is under way
    this.all.forEach((run, i) => this.have(run, answers[i]));
    this.draw();
  }

  have(run, series) {
    run.series = series;
    run.view ??= { axes: series.axes, lines: series.lines, marks: [], config: [], time: null };
    this.runs = this.all.filter((each) => each.series);
  }

  wanted() {
    const buckets = Math.round(BUCKETS / Math.max(1, this.all.length / 2.5)); // ten runs are drawn as quickly as three
    const wanted = { x: this.axis, smooth: this.smooth, buckets, log: this.logX ? 1 : 0 };
    if (this.range) {
      const spare = this.logX ? 0 : (this.range[1] - this.range[0]) * SPARE;
      wanted.from = this.range[0] - spare;
      wanted.to = this.range[1] + spare;
      if (!this.logX) wanted.buckets = Math.round(buckets * (1 + 2 * SPARE));
    }
    if (this.all.length > 1) wanted.names = "loss,smoothed,lr,grad_norm,tokens_per_s,mfu";
    return wanted;
  }

  /** New rows of a run that is going on. */
  take(id, tail) {
    const run = this.runs.find((each) => each.id === id);
    if (!run?.series) return;
    if (!tail || tail.axis !== run.series.axis) {
      this.refetchSoon();
      return;
    }
    for (const [name, ys] of Object.entries(tail.series)) {
      const series = run.series.series[name];
      if (!series) {
        if (!this.wanted().names) this.refetchSoon();
        continue;
      }
      const from = series.x.length ? tail.x.findIndex((x) => x > series.x[series.x.length - 1]) : 0;
      if (from < 0) continue;
      series.x = series.x.concat(tail.x.slice(from));
      series.y = series.y.concat(ys.slice(from));
      series.step = series.step.concat(tail.step.slice(from));
    }
    if (tail.step.length) {
      run.series.places.step.push(tail.step[tail.step.length - 1]);
      run.series.places.x.push(tail.x[tail.x.length - 1]);
    }
    Object.assign(run.series, { evals: tail.evals, not_finite: tail.not_finite, last: tail.last, rows: tail.rows });
    if ((run.series.series.loss?.x.length ?? 0) > 8 * BUCKETS) this.refetchSoon();
    else this.drawSoon();
  }

  lastSteps() {
    return Object.fromEntries(this.runs.map((run) => [run.id, run.series.last]));
  }

  // --- places

  place(run, step) {
    const { places } = run.series;
    return this.axis === "step" ? step : interpolate(places.step, places.x, step);
  }

  stepAt(run, x) {
    return this.axis === "step" ? Math.round(x) : Math.round(interpolate(run.series.places.x, run.series.places.step, x));
  }

  /** All that there is, and what is expected beyond it. */
  extent() {
    let high = 0;
    let low = Infinity;
    for (const run of this.runs) {
      const { places, evals } = run.series;
      if (places.x.length) {
        high = Math.max(high, places.x[places.x.length - 1]);
        low = Math.min(low, places.x[0]);
      }
      if (evals.step.length) {
        high = Math.max(high, this.place(run, evals.step[evals.step.length - 1]));
        low = Math.min(low, this.place(run, evals.step[0]));
      }
      if (this.forecasts && this.runs.length === 1 && run.forecast?.step) high = Math.max(high, this.place(run, run.forecast.step[run.forecast.step.length - 1]));
    }
    if (!Number.isFinite(low)) low = 0;
    if (this.logX) low = Math.max(low, this.axis === "step" ? 1 : high * 1e-4);
    else if (low < 0.2 * high) low = 0; // a log that begins in mid-run is shown from where it begins
    return [low, high > low ? high : low + 1];
  }

  seenRange() {
    return this.range ?? this.extent();
  }

  /** How near the pointer must be to a mark. */
  reach() {
    const [low, high] = this.seenRange();
    return (high - low) / 150;
  }

  setting(run, key) {
    for (const group of run.view.config) for (const row of group.rows) if (row.key === key) return row.value;
    return undefined;
  }

  // --- drawing

  draw() {
    if (!this.runs.length) return;
    const panels = panelsFor(this.runs);
    const keys = panels.map((panel) => panel.key).join();
    if (keys !== this.keys) this.build(panels, keys);
    this.fillBar();
    this.keepSoon();
    const range = this.seenRange();
    for (const panel of panels) {
      const chart = this.charts.get(panel.key);
      chart.isStale = true;
      if (this.seen.has(panel.key) || panel.key === "loss") this.drawChart(chart, range);
    }
  }

  /** Paper has another width than the screen, and no fold. */
  drawAll() {
    for (const chart of this.charts.values()) this.drawChart(chart);
  }

  /** In all charts. */
  hide(key, is) {
    if (is) this.hidden.add(key);
    else this.hidden.delete(key);
    this.draw();
    this.onHidden?.();
  }

  isolate(key) {
    const others = this.all.map((run) => run.id).filter((id) => id !== key);
    const isAlone = others.every((id) => this.hidden.has(id));
    for (const id of [key, ...others]) this.hidden.delete(id);
    if (!isAlone) for (const id of others) this.hidden.add(id);
    this.draw();
    this.onHidden?.();
  }

  highlight(key) {
    if (key === this.highlighted) return;
    this.highlighted = key;
    for (const chart of this.charts.values()) chart.highlight(key);
    this.onHighlight?.(key);
  }

  drawChart(chart, range = this.seenRange()) {
    chart.isStale = false;
    chart.draw(chart.panel.draw(this.runs, this), range);
  }

  build(panels, keys) {
    this.keys = keys;
    for (const panel of panels) {
      if (this.charts.has(panel.key)) continue;
      const chart = new Chart(panel, this);
      this.charts.set(panel.key, chart);
      this.eyes.observe(chart.element);
    }
    fill(this.grid, panels.map((panel) => this.charts.get(panel.key).element));
  }

  looked(entries) {
    for (const entry of entries) {
      const { chart: key } = entry.target.dataset;
      const chart = this.charts.get(key);
      if (!entry.isIntersecting) this.seen.delete(key);
      else {
        this.seen.add(key);
        if (chart.isStale) this.drawChart(chart);
        else if (chart.isElsewhere) chart.show(this.seenRange());
        chart.isElsewhere = false;
      }
    }
  }

  // --- zoom, pan, crosshair

  zoom(range) {
    const [low, high] = this.extent();
    const span = range[1] - range[0];
    if (!(span > 0)) return;
    this.range = [Math.max(range[0], low - span * 0.5), Math.min(range[1], high + span * 0.5)];
    if (this.logX) this.range[0] = Math.max(this.range[0], low);
    for (const [key, chart] of this.charts) {
      if (this.seen.has(key) || key === "loss") chart.show(this.range);
      else chart.isElsewhere = true;
    }
    this.fillBar();
    this.keepSoon();
    this.refetchSoon();
  }

  reset() {
    this.range = null;
    for (const chart of this.charts.values()) chart.yRange = null;
    this.draw();
    this.refetchSoon();
  }

  /** Half or twice as much, about the crosshair or the middle. */
  scale(times) {
    const [low, high] = this.seenRange();
    const centre = this.at !== null && this.at >= low && this.at <= high ? this.at : (low + high) / 2;
    this.zoom([centre - (centre - low) * times, centre + (high - centre) * times]);
  }

  shift(share) {
    const [low, high] = this.seenRange();
    const by = (high - low) * share;
    this.zoom([low + by, high + by]);
  }

  point(x, from = null) {
    this.at = x;
    for (const [key, chart] of this.charts) if (this.seen.has(key) || key === "loss") chart.read(x, chart === from);
    if (x === null) this.highlight(null);
    this.where.textContent = this.placeWords();
    this.onPoint?.(x);
  }

  xKind() {
    return X_KINDS[this.axis];
  }

  placeWords() {
    if (this.at === null) return "";
    const words = [this.showX(this.at)];
    if (this.axis !== "step" && this.runs.length === 1) words.unshift(t("where.step", { step: this.stepAt(this.runs[0], this.at) }));
    else if (this.axis === "step") return t("where.step", { step: Math.round(this.at) });
    return words.join(" · ");
  }

  showX(x) {
    return show(this.axis === "step" ? Math.round(x) : x, X_KINDS[this.axis]);
  }

  axisName() {
    return t(`axis.${this.axis}`);
  }

  /** To what a finding speaks of, from one step to another: the curve shows all of it, and the crosshair where it begins. */
  goTo(step, until = step) {
    const [run] = this.runs;
    const last = Math.max(run.series.last, run.series.evals.step[run.series.evals.step.length - 1] ?? 0, 1);
    const spare = Math.max(10, last * 0.06, (until - step) * 0.15);
    const low = this.place(run, Math.max(0, step - spare));
    const high = this.place(run, Math.min(last, until + spare));
    const loss = this.charts.get("loss");
    loss.element.scrollIntoView({ block: "center", behavior: "smooth" });
    this.zoom([this.logX ? Math.max(low, 1e-9) : low, Math.max(high, low + 1e-9)]);
    this.point(this.place(run, step));
    loss.flash(this.at);
    loss.stage.focus({ preventScroll: true });
  }

  // --- controls

  fillBar() {
    const known = AXES.filter((axis) => this.runs.every((run) => run.view.axes.includes(axis)));
    if (!known.includes(this.axis)) this.axis = "step";
    const isZoomed = Boolean(this.range) || [...this.charts.values()].some((chart) => chart.yRange);
    const state = [known, this.axis, this.logX, this.logY, this.robust, this.drag, this.smooth, this.forecasts, isZoomed, this.runs.map((run) => Boolean(run.forecast?.step))].join();
    if (state === this.barState) return;
    this.barState = state;
    const pick = (name, label, is, press, says) => button(label, press, { class: "pick", "aria-pressed": is ? "true" : "false", title: says, data: { pick: name, key: name } });
    const group = (label, ...items) => {
      const made = el("div", { class: "group", role: "group", "aria-label": label }, el("span", { class: "label" }, label), items);
      roving(made);
      return made;
    };
    const again = (change) => () => {
      change();
      this.range = null;
      this.load();
    };
    const set = (change) => () => {
      change();
      this.draw();
    };
    keepingFocus(this.bar, () => fill(
      this.bar,
      group(t("board.axis"), known.map((axis) => pick(`axis-${axis}`, t(`axis.${axis}`), this.axis === axis, again(() => { this.axis = axis; })))),
      group(
        t("board.scale"),
        pick("log-x", t("scale.log_x"), this.logX, again(() => { this.logX = !this.logX; })),
        pick("log-y", t("scale.log_y"), this.logY, set(() => { this.logY = !this.logY; })),
        pick("robust", t("scale.robust"), this.robust, set(() => { this.robust = !this.robust; }), t("scale.robust_says")),
      ),
      group(
        t("board.smoothing"),
        SMOOTH.map((window) => pick(`smooth-${window}`, window ? String(window) : t("smooth.off"), this.smooth === window, () => { this.smooth = window; this.load(); })),
      ),
      this.runs.length === 1 && this.runs[0].forecast?.step
        ? group(t("board.ahead"), pick("forecast", t("series.forecast"), this.forecasts, set(() => { this.forecasts = !this.forecasts; })))
        : null,
      group(
        t("board.mouse"),
        pick("zoom", t("mouse.zoom"), this.drag === "zoom", set(() => { this.drag = "zoom"; })),
        pick("pan", t("mouse.pan"), this.drag === "pan", set(() => { this.drag = "pan"; })),
        button(t("mouse.reset"), () => this.reset(), { class: "pick", disabled: !isZoomed, data: { pick: "reset", key: "reset" } }),
        this.source.isFile ? null : button(t("copy.link"), () => this.copyLink(), { class: "pick", data: { pick: "link", key: "link" } }),
      ),
      this.where,
    ));
  }

  async copyLink() {
    this.keepState();
    await navigator.clipboard.writeText(location.href);
    announce(t("copy.done"));
    const pressed = this.bar.querySelector("[data-pick=link]");
    pressed.textContent = t("copy.done");
    setTimeout(() => { pressed.textContent = t("copy.link"); }, 1500);
  }
}

function rangeIn(state) {
  const [low, high] = (state.get("range") ?? "").split(":").map(Number);
  return high > low ? [low, high] : null;
}

/** A window of about a fiftieth of the run. */
function firstSmoothing(runs) {
  const steps = Math.max(...runs.map((run) => run.row.step ?? 0));
  return steps >= 8000 ? 200 : steps >= 1500 ? 50 : steps >= 100 ? 10 : 0;
}
