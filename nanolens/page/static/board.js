// The charts of one or several runs: one axis, one zoom, one crosshair for all of them.

import { Chart, plotlyReady } from "./chart.js";
import { button, el, fill, keepingFocus, seldom } from "./dom.js";
import { panelsFor } from "./panels.js";
import { interpolate } from "./source.js";
import { show, t } from "./words.js";

const BUCKETS = 400; // stretches of the x axis that the server keeps extremes of: about one for two pixels
const SPARE = 0.25; // of what is seen, on either side, so that a pan shows something at once
const SMOOTH = [0, 10, 50, 200, 1000];
const AXES = ["step", "tokens", "flops", "time"];
const X_KINDS = { step: "count", tokens: "tokens", flops: "flops", time: "seconds" };

export class Board {
  /** `runs`: id, name, colour, row and (of one alone) view; their curves are fetched here. */
  constructor(source, runs) {
    this.source = source;
    this.all = runs;
    this.runs = []; // those whose curves are there
    this.axis = "step";
    this.logX = false;
    this.logY = false;
    this.drag = "zoom";
    this.range = null; // all
    this.at = null;
    this.forecasts = runs.some((run) => run.row.state === "running");
    this.smooth = firstSmoothing(runs);
    this.charts = new Map();
    this.bar = el("div", { class: "bar", role: "toolbar", "aria-label": t("board.controls") });
    this.where = el("output", { class: "where" });
    this.grid = el("div", { class: "charts" });
    this.element = el("div", { class: "board" }, this.bar, this.grid);
    this.refetchSoon = seldom(150, () => this.load());
    this.drawSoon = seldom(250, () => this.draw());
    this.onResize = seldom(120, () => this.draw());
    this.seen = new Set();
    this.eyes = new IntersectionObserver((entries) => this.looked(entries), { rootMargin: "200px" });
    window.addEventListener("resize", this.onResize);
  }

  close() {
    this.eyes.disconnect();
    window.removeEventListener("resize", this.onResize);
    for (const chart of this.charts.values()) window.Plotly?.purge(chart.plot);
  }

  // --- data

  async load() {
    const asked = (this.asked = (this.asked ?? 0) + 1);
    const wanted = this.wanted();
    const answers = await Promise.all(
      this.all.map(async (run) => {
        const found = await this.source.series(run.id, wanted);
        if (asked !== this.asked || (this.keys && window.Plotly)) return found;
        this.have(run, found); // the very first curves are drawn as they come
        this.draw();
        if (!this.isAwaited) plotlyReady().then(() => this.draw());
        this.isAwaited = true;
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
    const range = this.seenRange();
    for (const panel of panels) {
      const chart = this.charts.get(panel.key);
      chart.isStale = true;
      if (this.seen.has(panel.key) || panel.key === "loss") this.drawChart(chart, range);
    }
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

  zoom(range, from = null) {
    const [low, high] = this.extent();
    const span = range[1] - range[0];
    if (!(span > 0)) return Promise.resolve();
    this.range = [Math.max(range[0], low - span * 0.5), Math.min(range[1], high + span * 0.5)];
    const drawn = [];
    for (const [key, chart] of this.charts) {
      if (this.seen.has(key) || key === "loss") drawn.push(chart.show(this.range));
      else chart.isElsewhere = true;
    }
    this.fillBar();
    this.refetchSoon();
    return Promise.all(drawn);
  }

  reset() {
    this.range = null;
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

  point(x) {
    this.at = x;
    for (const [key, chart] of this.charts) if (this.seen.has(key) || key === "loss") chart.read(x);
    this.where.textContent = this.placeWords();
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

  /** To the place of a finding: the curve goes there, and the crosshair shows it. */
  async goTo(step) {
    const [run] = this.runs;
    const last = Math.max(run.series.last, run.series.evals.step[run.series.evals.step.length - 1] ?? 0, 1);
    const half = Math.max(10, last * 0.06);
    const low = this.place(run, Math.max(0, step - half));
    const high = this.place(run, Math.min(last, step + half));
    const loss = this.charts.get("loss");
    loss.element.scrollIntoView({ block: "center", behavior: "smooth" });
    await this.zoom([this.logX ? Math.max(low, 1e-9) : low, Math.max(high, low + 1e-9)]);
    this.point(this.place(run, step));
    loss.flash(this.at);
    loss.stage.focus({ preventScroll: true });
  }

  // --- controls

  fillBar() {
    const known = AXES.filter((axis) => this.runs.every((run) => run.view.axes.includes(axis)));
    const state = [known, this.axis, this.logX, this.logY, this.drag, this.smooth, this.forecasts, Boolean(this.range), this.runs.map((run) => Boolean(run.forecast?.step))].join();
    if (state === this.barState) return;
    this.barState = state;
    const pick = (name, label, is, press) => button(label, press, { class: "pick", "aria-pressed": is ? "true" : "false", data: { pick: name, key: name } });
    const group = (label, ...items) => el("div", { class: "group", role: "group", "aria-label": label }, el("span", { class: "label" }, label), items);
    const again = (change) => () => {
      change();
      this.range = null;
      this.load();
    };
    keepingFocus(this.bar, () => fill(
      this.bar,
      group(t("board.axis"), known.map((axis) => pick(`axis-${axis}`, t(`axis.${axis}`), this.axis === axis, again(() => { this.axis = axis; })))),
      group(
        t("board.scale"),
        pick("log-x", t("scale.log_x"), this.logX, again(() => { this.logX = !this.logX; })),
        pick("log-y", t("scale.log_y"), this.logY, () => { this.logY = !this.logY; this.draw(); }),
      ),
      group(
        t("board.smoothing"),
        SMOOTH.map((window) => pick(`smooth-${window}`, window ? String(window) : t("smooth.off"), this.smooth === window, () => { this.smooth = window; this.load(); })),
      ),
      this.runs.length === 1 && this.runs[0].forecast?.step
        ? group(t("board.ahead"), pick("forecast", t("series.forecast"), this.forecasts, () => { this.forecasts = !this.forecasts; this.draw(); }))
        : null,
      group(
        t("board.mouse"),
        pick("zoom", t("mouse.zoom"), this.drag === "zoom", () => { this.drag = "zoom"; this.draw(); }),
        pick("pan", t("mouse.pan"), this.drag === "pan", () => { this.drag = "pan"; this.draw(); }),
        button(t("mouse.reset"), () => this.reset(), { class: "pick", disabled: !this.range, data: { pick: "reset" } }),
      ),
      this.where,
    ));
  }
}

/** A window of about a fiftieth of the run. */
function firstSmoothing(runs) {
  const steps = Math.max(...runs.map((run) => run.row.step ?? 0));
  return steps >= 5000 ? 200 : steps >= 600 ? 50 : steps >= 100 ? 10 : 0;
}
