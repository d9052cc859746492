// One chart: Plotly draws it; the crosshair, the readout and the data table are the page's own, so that they are the same on every chart.

import { announce, el, fill, svg } from "./dom.js";
import { firstAtLeast } from "./source.js";
import { show, t } from "./words.js";

const MARGIN = { l: 58, r: 14, t: 8, b: 24 };
const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, scrollZoom: false, showTips: false, staticPlot: false };
const TABLE_ROWS = 200;
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];

let plotly = null;

/** Its script is large and holds the page for a second where the machine is slow: it is run once there is something to look at. */
export function plotlyReady() {
  plotly ??= window.Plotly
    ? Promise.resolve()
    : new Promise((done) => requestAnimationFrame(() => setTimeout(() => document.head.append(el("script", { src: "/plotly.js", on: { load: done } })))));
  return plotly;
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export class Chart {
  /** `panel`: key, title, note; `owner` is the board, which is notified of zooms and of where the pointer is. */
  constructor(panel, owner) {
    this.panel = panel;
    this.owner = owner;
    this.hidden = new Set();
    this.legend = el("div", { class: "legend" });
    this.plot = el("div", { class: `plot ${panel.tall ? "tall" : ""}` });
    this.hair = el("div", { class: "hair", hidden: true });
    this.spot = el("div", { class: "spot", hidden: true });
    this.stage = el("div", { class: "stage", tabindex: 0, role: "img", "aria-label": panel.title }, this.plot, this.hair, this.spot);
    this.table = el("div", { class: "table-place" });
    const rows = el("details", { class: "rows", on: { toggle: () => this.fillTable(rows.open) } }, el("summary", {}, t("chart.table")), this.table);
    this.note = el("p", { class: "note" });
    this.element = el(
      "section",
      { class: "chart", data: { chart: panel.key } },
      el("header", {}, el("h3", {}, panel.title), this.legend),
      this.stage,
      el("footer", {}, this.note, rows),
    );
    this.stage.addEventListener("pointermove", (event) => this.pointed(event));
    this.stage.addEventListener("pointerleave", () => owner.point(null));
    this.stage.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** Draws `spec`: lines, bands, levels, marks, bars. All x are in the units of the axis. */
  draw(spec, range) {
    this.spec = spec;
    this.range = range;
    this.fillLegend();
    fill(this.note, spec.note ?? "");
    this.stage.setAttribute("aria-label", `${this.panel.title}. ${spec.summary ?? ""}`);
    const size = this.plot.getBoundingClientRect();
    if (size.width < 10) return;
    this.width = size.width;
    if (!window.Plotly) return this.sketch(size);
    this.sketched?.remove();
    const layout = this.layout(size);
    window.Plotly.react(this.plot, this.traces(), layout, CONFIG);
    if (!this.isWired) {
      this.isWired = true;
      this.plot.on("plotly_relayout", (change) => this.relayouted(change));
      this.plot.on("plotly_doubleclick", () => this.owner.reset());
    }
    this.read(this.owner.at);
  }

  /** The curves alone, in the place where Plotly will draw them. */
  sketch({ width, height }) {
    const [left, right] = this.axisRange(this.range);
    const [low, high] = this.fitted();
    const across = (x) => MARGIN.l + (((this.owner.logX ? Math.log10(x) : x) - left) / (right - left)) * (width - MARGIN.l - MARGIN.r);
    const down = (y) => MARGIN.t + ((high - (this.isLogY() ? Math.log10(y) : y)) / (high - low)) * (height - MARGIN.t - MARGIN.b);
    const paths = (this.spec.lines ?? []).filter((line) => !line.isAside).map((line) => {
      let pen = "M";
      const path = [];
      line.x.forEach((x, i) => {
        const [at, y] = [across(x), line.y[i] === null ? NaN : down(line.y[i])];
        if (Number.isFinite(at) && Number.isFinite(y)) path.push(`${pen}${at.toFixed(1)} ${y.toFixed(1)}`);
        pen = Number.isFinite(y) ? "L" : line.joins ? pen : "M";
      });
      return svg("path", { d: path.join(""), stroke: line.colour, "stroke-width": line.width ?? 1.4, opacity: line.opacity ?? 1 });
    });
    const drawn = svg("svg", { class: "sketch", width, height, "aria-hidden": "true" }, paths);
    this.sketched?.remove();
    this.sketched = drawn;
    this.stage.append(drawn);
  }

  /** Only another stretch of what is drawn already: no trace is built anew. */
  show(range) {
    this.range = range;
    if (!this.spec || !this.isWired) return undefined;
    const [low, high] = this.fitted();
    const change = { "xaxis.range": this.axisRange(range), "yaxis.range": [low, high] };
    if (this.owner.axis === "time") Object.assign(change, prefixed(timeTicks(range)));
    return window.Plotly.relayout(this.plot, change);
  }

  traces() {
    const found = [];
    for (const band of this.spec.bands ?? []) {
      if (this.hidden.has(band.key)) continue;
      found.push({
        type: "scatter", mode: "lines", x: [...band.x, ...[...band.x].reverse()], y: [...band.high, ...[...band.low].reverse()],
        fill: "toself", fillcolor: band.colour, line: { width: 0 }, hoverinfo: "skip",
      });
    }
    for (const line of this.spec.lines ?? []) {
      if (this.hidden.has(line.key)) continue;
      found.push({
        type: "scatter", mode: line.mode ?? "lines", x: line.x, y: line.y, hoverinfo: "skip", connectgaps: line.joins ?? false,
        opacity: line.opacity ?? 1,
        line: { color: line.colour, width: line.width ?? 1.4, dash: line.dash ?? "solid", simplify: true },
        marker: { color: line.colour, size: line.size ?? 5, symbol: line.symbol ?? "circle" },
      });
    }
    for (const bar of this.spec.bars ?? []) {
      if (this.hidden.has(bar.key)) continue;
      found.push({ type: "bar", x: bar.x, y: bar.y, width: bar.width, marker: { color: bar.colour, line: { width: 0 } }, hoverinfo: "skip" });
    }
    for (const mark of this.spec.marks ?? []) {
      if (this.hidden.has(mark.key)) continue;
      found.push({
        type: "scatter", mode: "markers", x: mark.x, y: mark.x.map(() => mark.height), yaxis: "y2", hoverinfo: "skip", cliponaxis: false,
        marker: { color: mark.colour, symbol: mark.symbol, size: mark.size ?? 7, line: { color: mark.colour, width: 1.2 } },
      });
    }
    if (!found.length) found.push({ type: "scatter", x: [0], y: [0], visible: false });
    return found;
  }

  layout(size) {
    const grid = colour("grid");
    const faint = colour("faint");
    const font = { family: getComputedStyle(document.body).fontFamily, size: 11, color: faint };
    const [low, high] = this.fitted();
    const levels = (this.spec.levels ?? []).filter((level) => !this.hidden.has(level.key));
    const axis = {
      showgrid: true, gridcolor: grid, gridwidth: 1, zeroline: false, linecolor: grid, showline: false, ticks: "", automargin: false,
      tickfont: font, exponentformat: "SI", separatethousands: true,
    };
    return {
      width: Math.round(size.width), height: Math.round(size.height), margin: MARGIN, font, autosize: false, showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: false, barmode: "stack", bargap: 0,
      dragmode: this.owner.drag, uirevision: "kept",
      xaxis: {
        ...axis, type: this.owner.logX ? "log" : "linear", range: this.axisRange(this.range), showgrid: false, showline: true,
        tickformat: this.owner.axis === "step" ? ",d" : "~s", nticks: Math.max(3, Math.floor(size.width / 110)),
        ...(this.owner.axis === "time" ? timeTicks(this.range) : { tickmode: "auto" }),
      },
      yaxis: {
        ...axis, type: this.isLogY() ? "log" : "linear", range: [low, high], fixedrange: true, nticks: 6,
        tickformat: this.panel.tickformat ?? "", rangemode: "normal",
        ...(this.isLogY() ? { dtick: high - low < 3 ? "D2" : 1 } : {}), // 1, 2, 5 or whole decades
      },
      yaxis2: { overlaying: "y", range: [0, 1], fixedrange: true, visible: false },
      shapes: [
        ...levels.map((level) => ({
          type: "line", xref: "paper", x0: 0, x1: 1, yref: "y", y0: level.y, y1: level.y, layer: "below",
          line: { color: level.colour ?? faint, width: 1, dash: "dot" },
        })),
        ...(this.spec.areas ?? []).map((area) => ({
          type: "rect", xref: "x", x0: area.from, x1: area.to, yref: "paper", y0: 0, y1: 1, layer: "below",
          fillcolor: area.colour, opacity: 0.18, line: { color: area.colour, width: 1 },
        })),
      ],
      annotations: [
        ...levels.map((level) => ({
          xref: "paper", x: 1, xanchor: "right", yref: "y", y: this.isLogY() ? Math.log10(level.y) : level.y, yanchor: "bottom",
          text: plain(level.label), showarrow: false, font: { ...font, size: 10.5, color: level.colour ?? faint }, borderpad: 1,
        })),
        ...(this.spec.areas ?? []).map((area) => ({
          xref: "x", x: this.owner.logX ? Math.log10(Math.max(area.from, 1e-12)) : area.from, xanchor: "left", yref: "paper", y: 1, yanchor: "top",
          text: plain(area.label), showarrow: false, font: { ...font, color: area.colour, size: 11 },
        })),
      ],
    };
  }

  isLogY() {
    return this.panel.logY ?? (this.panel.followsLog && this.owner.logY);
  }

  /** The y range that holds all that is seen: in the units of the axis, logarithms where it is one of them. */
  fitted() {
    let low = Infinity;
    let high = -Infinity;
    const isLog = this.isLogY();
    const take = (xs, ys) => {
      const last = Math.min(xs.length, firstAtLeast(xs, this.range[1]) + 1);
      for (let i = Math.max(0, firstAtLeast(xs, this.range[0]) - 1); i < last; i += 1) {
        const y = ys[i];
        if (y === null || !Number.isFinite(y) || (isLog && y <= 0)) continue;
        if (y < low) low = y;
        if (y > high) high = y;
      }
    };
    for (const line of this.spec.lines ?? []) if (!line.isAside && !this.hidden.has(line.key)) take(line.x, line.y);
    if (this.spec.bars?.length) {
      const tops = this.spec.bars[0].x.map((_, i) => this.spec.bars.reduce((sum, bar) => sum + (this.hidden.has(bar.key) ? 0 : bar.y[i]), 0));
      take(this.spec.bars[0].x, tops);
      low = 0;
    }
    if (!(high >= low)) [low, high] = isLog ? [0.1, 1] : [0, 1];
    if (this.panel.fromZero && !isLog) low = Math.min(0, low);
    if (isLog) [low, high] = [Math.log10(low), Math.log10(high)];
    const spare = high > low ? 0.06 * (high - low) : Math.max(Math.abs(high) * 0.1, isLog ? 0.1 : 1e-9);
    return [this.panel.fromZero && low === 0 ? 0 : low - spare, high + spare];
  }

  axisRange([low, high]) {
    return this.owner.logX ? [Math.log10(Math.max(low, high * 1e-6)), Math.log10(high)] : [low, high];
  }

  relayouted(change) {
    if (change["xaxis.range[0]"] === undefined) return;
    let range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (this.owner.logX) range = range.map((value) => 10 ** value);
    this.owner.zoom(range, this);
  }

  // --- the crosshair

  pointed(event) {
    const box = this.plot.getBoundingClientRect();
    const inside = (event.clientX - box.left - MARGIN.l) / (box.width - MARGIN.l - MARGIN.r);
    if (inside < 0 || inside > 1 || !this.range) return this.owner.point(null);
    const [low, high] = this.axisRange(this.range);
    const x = low + inside * (high - low);
    return this.owner.point(this.owner.logX ? 10 ** x : x);
  }

  /** The values at x: of each line the nearest point that was recorded. */
  read(x) {
    if (!this.spec || !this.range) return;
    const isSeen = x !== null && x !== undefined && x >= this.range[0] && x <= this.range[1];
    this.hair.hidden = !isSeen;
    if (isSeen) {
      const [low, high] = this.axisRange(this.range);
      const share = ((this.owner.logX ? Math.log10(x) : x) - low) / (high - low);
      this.hair.style.setProperty("left", `${MARGIN.l + share * (this.width - MARGIN.l - MARGIN.r)}px`);
    }
    for (const item of this.items) {
      const { series, value } = item;
      if (!isSeen) value.textContent = item.rest;
      else value.textContent = valueAt(series, x);
    }
  }

  pressed(event) {
    const keys = { "+": () => this.owner.scale(0.5), "=": () => this.owner.scale(0.5), "-": () => this.owner.scale(2), 0: () => this.owner.reset() };
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (keys[event.key]) keys[event.key]();
    else if (way && event.shiftKey) this.owner.shift(way * 0.2);
    else if (way) this.stepTo(way);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The crosshair goes to the next point of the first line, and says what is there. */
  stepTo(way) {
    const line = (this.spec?.lines ?? []).find((each) => each.x.length && !this.hidden.has(each.key));
    if (!line) return;
    const now = this.owner.at ?? (way > 0 ? this.range[0] : this.range[1]);
    let index = firstAtLeast(line.x, now);
    if (way > 0 && line.x[index] === now) index += 1;
    if (way < 0) index -= 1;
    index = Math.min(line.x.length - 1, Math.max(0, index));
    this.owner.point(line.x[index]);
    announce([this.owner.placeWords(), ...this.items.map(({ series, value }) => `${series.name} ${value.textContent}`)].join(", "));
  }

  // --- the legend, which is also the readout

  fillLegend() {
    this.items = [];
    const shown = [...(this.spec.lines ?? []), ...(this.spec.bars ?? []), ...(this.spec.marks ?? [])].filter((series) => series.name);
    fill(
      this.legend,
      shown.map((series) => {
        const rest = series.rest ?? "";
        const value = el("span", { class: "value" }, rest);
        if (series.kind) this.items.push({ series, value, rest });
        if (series.name === this.panel.title) return el("span", { class: "item alone" }, value); // the only curve: the title names it
        const swatch = el("span", { class: `swatch ${series.symbol ? "dot" : ""}`, style: { "--colour": series.colour } });
        const isOn = !this.hidden.has(series.key);
        const toggle = () => {
          if (isOn) this.hidden.add(series.key);
          else this.hidden.delete(series.key);
          this.draw(this.spec, this.range);
        };
        return el("button", { type: "button", class: "item", title: series.says ?? t("chart.toggle"), "aria-pressed": isOn ? "true" : "false", on: { click: toggle } }, swatch, el("span", {}, series.name), value);
      }),
    );
  }

  // --- the same numbers as a table

  fillTable(isOpen) {
    if (!isOpen) return fill(this.table);
    const lines = [...(this.spec?.lines ?? []), ...(this.spec?.bars ?? [])].filter((line) => line.x.length && line.kind);
    if (!lines.length) return fill(this.table, el("p", {}, t("chart.empty")));
    const longest = lines.reduce((most, line) => (line.x.length > most.x.length ? line : most));
    const seen = longest.x.filter((x) => x >= this.range[0] && x <= this.range[1]);
    const every = Math.max(1, Math.ceil(seen.length / TABLE_ROWS));
    const xs = seen.filter((_, i) => i % every === 0 || i === seen.length - 1);
    return fill(
      this.table,
      every > 1 ? el("p", { class: "note" }, t("chart.rows", { shown: xs.length, all: seen.length })) : null,
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, this.owner.axisName()), lines.map((line) => el("th", { scope: "col" }, line.name ?? line.key)))),
        el("tbody", {}, xs.map((x) => el("tr", {}, el("th", { scope: "row" }, this.owner.showX(x)), lines.map((line) => el("td", {}, valueAt(line, x)))))),
      ),
    );
  }

  flash(x) {
    this.read(x);
    this.spot.hidden = false;
    this.spot.style.setProperty("left", this.hair.style.left);
    this.spot.classList.remove("flash");
    void this.spot.offsetWidth; // starts the animation anew
    this.spot.classList.add("flash");
  }
}

/** What a series says at x, in words: its nearest point; NaN where it broke off; nothing where it has not begun or has ended. */
function valueAt(series, x) {
  const { x: xs, y: ys } = series;
  if (!xs.length) return "";
  if (!ys) {
    const near = nearest(xs, x);
    return Math.abs(xs[near] - x) <= (series.reach ?? 0) ? series.texts?.[near] ?? "●" : "";
  }
  const first = xs[0];
  const last = xs[xs.length - 1];
  const spare = xs.length > 1 ? (last - first) / (xs.length - 1) : Math.abs(first) * 0.02 || 1;
  if (x < first - spare || x > last + spare) return "";
  const y = ys[nearest(xs, x)];
  return y === null ? (series.gap ?? "NaN") : show(y, series.kind);
}

export function nearest(xs, x) {
  const right = Math.min(xs.length - 1, firstAtLeast(xs, x));
  return right > 0 && x - xs[right - 1] < xs[right] - x ? right - 1 : right;
}

/** Plotly reads a few tags in its labels; what comes from a run is plain text. */
function plain(text) {
  return String(text).replaceAll("<", "‹").replaceAll(">", "›").replaceAll("$", "＄");
}

function timeTicks([low, high]) {
  const step = TIME_STEPS.find((each) => (high - low) / each <= 7) ?? 86400 * Math.ceil((high - low) / 86400 / 7);
  const vals = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) vals.push(at);
  return { tickmode: "array", tickvals: vals, ticktext: vals.map((value) => clock(value, step)) };
}

function clock(value, step) {
  if (step >= 86400) return `${value / 86400} d`;
  if (step >= 3600) return `${value / 3600} h`;
  if (value >= 3600) return `${Math.floor(value / 3600)}:${String(Math.round((value % 3600) / 60)).padStart(2, "0")} h`;
  if (step >= 60) return `${value / 60} min`;
  if (value >= 60) return `${Math.floor(value / 60)}:${String(Math.round(value % 60)).padStart(2, "0")} min`;
  return `${value} s`;
}

function prefixed(about) {
  return Object.fromEntries(Object.entries(about).map(([key, value]) => [`xaxis.${key}`, value]));
}
