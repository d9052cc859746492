// One chart, drawn as SVG: curves, bands, bars, levels, marks and findings; the crosshair, what it reads, and the same numbers as a table or a file.

import { announce, button, el, fill, svg } from "./dom.js";
import { firstAtLeast } from "./source.js";
import { linearTicks, logTicks, tickText, timeTicks } from "./ticks.js";
import { show, t } from "./words.js";

const MARGIN = { l: 58, r: 14, t: 10, b: 36 };
const TABLE_ROWS = 200;
const NEAR_PX = 3; // a point this near to the crosshair is "there"
const MARK_GAP_PX = 7;
const TIP_ROWS = 12;
const LINE_PX = 13; // of a label

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export class Chart {
  /** `panel`: key, title, kind, note; `owner` is the board, which is notified of zooms and of where the pointer is. */
  constructor(panel, owner) {
    this.panel = panel;
    this.owner = owner;
    this.legend = el("div", { class: "legend", role: "group", "aria-label": panel.title });
    this.plot = el("div", { class: `plot ${panel.tall ? "tall" : ""}` });
    this.hair = el("div", { class: "hair", hidden: true });
    this.spot = el("div", { class: "spot", hidden: true });
    this.box = el("div", { class: "select", hidden: true });
    this.tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.stage = el("div", { class: "stage", tabindex: 0, role: "img", "aria-label": panel.title }, this.plot, this.hair, this.spot, this.box, this.tip);
    this.table = el("div", { class: "table-place" });
    this.rows = el("details", { class: "rows", on: { toggle: () => this.fillTable() } }, el("summary", {}, t("chart.table")), this.table);
    this.note = el("p", { class: "note" });
    this.element = el("section", { class: "chart", data: { chart: panel.key } }, el("header", {}, el("h2", {}, panel.title), this.legend), this.stage, el("footer", {}, this.note, this.rows));
    this.pointers = new Map();
    const listen = { pointerdown: "pressedDown", pointermove: "moved", pointerup: "lifted", pointercancel: "lifted", pointerleave: "left", keydown: "pressed", dblclick: "twice" };
    for (const [event, method] of Object.entries(listen)) this.stage.addEventListener(event, (happened) => this[method](happened));
    this.stage.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
  }

  get hidden() {
    return this.owner.hidden;
  }

  /** Draws `spec`: lines, bands, levels, marks, bars, pins. All x are in the units of the axis. */
  draw(spec, range) {
    this.spec = spec;
    this.fillLegend();
    fill(this.note, spec.note ?? "");
    this.stage.setAttribute("aria-label", `${this.panel.title}. ${spec.summary ?? ""}`);
    this.show(range);
  }

  /** What was given to `draw`, over another stretch. */
  show(range) {
    this.range = range;
    const size = this.plot.getBoundingClientRect();
    if (!this.spec || size.width < 10) return;
    this.width = Math.round(size.width);
    this.height = Math.round(size.height);
    this.setScales();
    Object.assign(this.stage.dataset, { from: range[0], to: range[1], low: this.low, high: this.high });
    this.dots = svg("g", { class: "dots" });
    const name = `clip-${this.panel.key}`;
    const inside = { x: MARGIN.l - 4, y: 0, width: this.width - MARGIN.l - MARGIN.r + 8, height: this.height - MARGIN.b + 1 };
    this.picture = svg(
      "svg",
      { width: this.width, height: this.height, viewBox: `0 0 ${this.width} ${this.height}`, "font-family": getComputedStyle(document.body).fontFamily, "font-size": 11, "aria-hidden": "true" },
      svg("clipPath", { id: name }, svg("rect", inside)),
      this.grid(),
      svg("g", { "clip-path": `url(#${name})` }, this.areas(), this.bands(), this.bars(), this.levelLines(), this.lines(), this.marks()),
      this.levelTexts(),
      this.pins(),
      this.dots,
    );
    fill(this.plot, this.picture);
    if (this.rows.open) this.fillTable();
    this.read(this.owner.at);
  }

  // --- scales

  setScales() {
    const isLog = this.isLogY();
    [this.low, this.high] = this.yRange ?? this.fitted();
    const [left, right] = this.axisRange(this.range);
    const across = (this.width - MARGIN.l - MARGIN.r) / (right - left);
    const down = (this.height - MARGIN.t - MARGIN.b) / (this.high - this.low);
    this.toX = this.owner.logX ? (x) => (x > 0 ? MARGIN.l + (Math.log10(x) - left) * across : NaN) : (x) => MARGIN.l + (x - left) * across;
    this.toY = isLog ? (y) => (y > 0 ? MARGIN.t + (this.high - Math.log10(y)) * down : NaN) : (y) => MARGIN.t + (this.high - y) * down;
    this.fromX = (px) => this.unlog(left + (px - MARGIN.l) / across);
  }

  unlog(x) {
    return this.owner.logX ? 10 ** x : x;
  }

  isLogY() {
    return this.panel.logY ?? (this.panel.followsLog && this.owner.logY);
  }

  axisRange([low, high]) {
    return this.owner.logX ? [Math.log10(Math.max(low, high * 1e-6)), Math.log10(high)] : [low, high];
  }

  seen(list) {
    return (list ?? []).filter((each) => !this.hidden.has(each.key));
  }

  /** The y range of what is seen, in the units of the axis: at its edges the curve itself, not the next point beyond them. */
  fitted() {
    const isLog = this.isLogY();
    const ys = [];
    const take = (y) => { if (y !== null && Number.isFinite(y) && (!isLog || y > 0)) ys.push(y); };
    const within = (xs, values) => {
      const first = firstAtLeast(xs, this.range[0]);
      let i = first;
      for (; i < xs.length && xs[i] <= this.range[1]; i += 1) take(values[i]);
      if (first > 0 && first < xs.length) take(between(xs, values, first, this.range[0]));
      if (i > 0 && i < xs.length) take(between(xs, values, i, this.range[1]));
    };
    for (const line of this.seen(this.spec.lines)) if (!line.isAside) within(line.x, line.y);
    for (const band of this.seen(this.spec.bands)) if (band.isFitted) for (const edge of [band.low, band.high]) within(band.x, edge);
    let [low, high] = this.owner.robust && this.panel.followsLog ? robust(ys) : extremes(ys);
    const bars = this.seen(this.spec.bars);
    if (bars.length) {
      high = Math.max(...bars[0].x.map((x, i) => (x >= this.range[0] && x <= this.range[1] ? bars.reduce((sum, bar) => sum + bar.y[i], 0) : 0)));
      low = 0;
    }
    if (!(high >= low)) [low, high] = isLog ? [0.1, 1] : [0, 1];
    if (this.panel.fromZero && !isLog) low = Math.min(0, low);
    if (isLog) [low, high] = [Math.log10(low), Math.log10(high)];
    const spare = high > low ? 0.06 * (high - low) : Math.max(Math.abs(high) * 0.1, isLog ? 0.1 : 1e-9);
    return [this.panel.fromZero && low === 0 ? 0 : low - spare, high + spare];
  }

  // --- what is drawn

  grid() {
    const [grid, faint] = [colour("grid"), colour("faint")];
    const bottom = this.height - MARGIN.b;
    const right = this.width - MARGIN.r;
    const most = Math.max(2, Math.floor((bottom - MARGIN.t) / 42));
    const ys = this.isLogY() ? logTicks(10 ** this.low, 10 ** this.high, most) : linearTicks(this.low, this.high, most);
    const yStep = ys.length > 1 ? Math.min(...ys.slice(1).map((y, i) => y - ys[i])) : ys[0] || 1;
    const kind = this.panel.kind ?? "number";
    const xs = this.xTicks();
    const xStep = xs.length > 1 ? xs[1] - xs[0] : 1;
    return svg(
      "g",
      { fill: faint },
      ys.map((y) => [
        svg("line", { x1: MARGIN.l, x2: right, y1: this.toY(y), y2: this.toY(y), stroke: grid }),
        svg("text", { class: "y-tick", x: MARGIN.l - 8, y: this.toY(y) + 4, "text-anchor": "end" }, tickText(y, kind, yStep)),
      ]),
      svg("line", { x1: MARGIN.l, x2: right, y1: bottom, y2: bottom, stroke: grid }),
      xs.map((x) => svg("text", { class: "x-tick", x: this.toX(x), y: bottom + 15, "text-anchor": "middle" }, tickText(x, this.owner.xKind(), xStep))),
      svg("text", { class: "x-title", x: right, y: this.height - 3, "text-anchor": "end" }, this.owner.axisName()),
      this.panel.unit ? svg("text", { class: "y-title", x: 4, y: this.height - 3 }, this.panel.unit) : null,
    );
  }

  xTicks() {
    const most = Math.max(2, Math.floor((this.width - MARGIN.l - MARGIN.r) / 96));
    const [low, high] = this.range;
    if (this.owner.logX) return logTicks(...this.axisRange(this.range).map((x) => 10 ** x), most);
    if (this.owner.xKind() === "seconds") return timeTicks(low, high, most);
    return linearTicks(low, high, most, this.owner.axis === "step" ? 1 : 0);
  }

  areas() {
    const bottom = this.height - MARGIN.b;
    const piece = (area, opacity) => {
      const from = Math.max(MARGIN.l - 4, this.toX(this.owner.logX ? Math.max(area.from, this.range[0] * 0.5) : area.from));
      const to = Math.min(this.width, this.toX(area.to));
      return to > from ? [svg("rect", { x: from, width: Math.max(1.5, to - from), y: MARGIN.t, height: bottom - MARGIN.t, fill: area.colour, opacity }), area.label ? svg("text", { x: from + 4, y: MARGIN.t + 12, fill: area.colour }, area.label) : null] : null;
    };
    const shaded = (this.spec.pins ?? []).filter((pin) => pin.isShaded && pin.to > pin.from);
    return [...shaded.map((pin) => svg("g", { class: "finding-range", "data-pin": pin.number }, piece({ ...pin, label: "" }, pin.isShown ? 0.14 : 0.055))), ...(this.spec.areas ?? []).map((area) => svg("g", { class: "area" }, piece(area, 0.18)))];
  }

  bands() {
    return this.seen(this.spec.bands).map((band) => {
      const points = band.x.map((x, i) => [this.toX(x), this.toY(band.low[i]), this.toY(band.high[i])]).filter((each) => each.every(Number.isFinite));
      if (!points.length) return null;
      const upper = points.map(([x, , y]) => `${x.toFixed(1)} ${y.toFixed(1)}`);
      const lower = points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).reverse();
      return svg("path", { class: "band", d: `M${[...upper, ...lower].join("L")}Z`, fill: band.colour });
    });
  }

  lines() {
    return this.seen(this.spec.lines).map((line) => {
      const { d, dots } = this.path(line);
      const drawn = [line.mode === "markers" ? null : svg("path", { class: "curve", d, fill: "none", stroke: line.colour, "stroke-width": line.width ?? 1.4, "stroke-linejoin": "round", "stroke-dasharray": line.dash ?? "" })];
      if ((line.mode ?? "lines") !== "lines") drawn.push(...dots.map(([x, y]) => svg("circle", { cx: x, cy: y, r: (line.size ?? 5) / 2, fill: line.isOpen ? "none" : line.colour, stroke: line.colour })));
      return svg("g", { class: "series", "data-key": line.group ?? line.key, opacity: line.opacity ?? 1 }, drawn);
    });
  }

  /** Through the points that are seen and one beyond them on each side; a place that the axis does not have is left out. */
  path(line) {
    const { x: xs, y: ys } = line;
    const first = Math.max(0, firstAtLeast(xs, this.range[0]) - 1);
    const last = Math.min(xs.length, firstAtLeast(xs, this.range[1]) + 2);
    const d = [];
    const dots = [];
    let pen = "M";
    for (let i = first; i < last; i += 1) {
      const x = this.toX(xs[i]);
      const y = ys[i] === null ? NaN : this.toY(ys[i]);
      if (Number.isFinite(x) && Number.isFinite(y)) {
        d.push(`${pen}${x.toFixed(1)} ${y.toFixed(1)}`);
        dots.push([x, y]);
        pen = "L";
      } else if (!line.joins) pen = "M";
    }
    return { d: d.join(""), dots };
  }

  bars() {
    const bars = this.seen(this.spec.bars);
    const tops = new Float64Array(bars[0]?.x.length ?? 0);
    return bars.map((bar) => svg("g", { fill: bar.colour }, bar.x.map((x, i) => {
      const [left, right] = [this.toX(Math.max(x - bar.width[i] / 2, this.owner.logX ? this.range[0] * 0.5 : -Infinity)), this.toX(x + bar.width[i] / 2)];
      const from = tops[i];
      tops[i] += bar.y[i];
      if (!(bar.y[i] > 0) || !(right > 0) || left > this.width) return null;
      const [top, bottom] = [this.toY(tops[i]), this.toY(from)];
      return svg("rect", { x: left.toFixed(1), width: Math.max(0.5, right - left).toFixed(1), y: top.toFixed(1), height: Math.max(0, bottom - top).toFixed(1) });
    })));
  }

  levelLines() {
    return this.shownLevels().map((level) => svg("line", { class: "level", x1: MARGIN.l, x2: this.width - MARGIN.r, y1: this.toY(level.y), y2: this.toY(level.y), stroke: level.colour, "stroke-dasharray": "1.5 3" }));
  }

  shownLevels() {
    return this.seen(this.spec.levels).filter((level) => this.toY(level.y) >= MARGIN.t - 2 && this.toY(level.y) <= this.height - MARGIN.b);
  }

  /** Levels that lie too near to one another share a label of their short names. */
  levelTexts() {
    const groups = [];
    for (const level of this.shownLevels().sort((one, other) => this.toY(one.y) - this.toY(other.y))) {
      const y = this.toY(level.y);
      const last = groups[groups.length - 1];
      if (last && y - last.y < LINE_PX) last.levels.push(level);
      else groups.push({ y, levels: [level] });
    }
    return groups.map(({ y, levels }) => {
      const isNarrow = this.width < 520 || levels.length > 1;
      const text = levels.map((level) => (isNarrow ? level.label.split(/[:：]/)[0] : level.label)).join(" · ");
      return svg("text", { class: "level-text", x: this.width - MARGIN.r, y: Math.max(LINE_PX - 2, y - 3), "text-anchor": "end", fill: levels[0].colour, stroke: colour("paper"), "stroke-width": 3, "paint-order": "stroke" }, text);
    });
  }

  /** As many as can be told apart; the others are in the crosshair's readout. */
  marks() {
    const bottom = this.height - MARGIN.b;
    return this.seen(this.spec.marks).map((mark) => {
      const places = [];
      for (const x of mark.x) {
        const at = this.toX(x);
        if (x >= this.range[0] && x <= this.range[1] && !(at - places[places.length - 1] < MARK_GAP_PX)) places.push(at);
      }
      const y = mark.isTop ? MARGIN.t + 8 : bottom - (mark.rise ?? 3);
      return svg("g", { class: "mark", "data-key": mark.key, stroke: mark.colour, fill: mark.colour, "stroke-width": 1.2 }, places.map((x) => svg("path", { d: SHAPES[mark.shape](x, y, bottom) })));
    });
  }

  /** Numbered findings at the top of the curve. */
  pins() {
    const taken = [];
    return (this.spec.pins ?? []).map((pin) => {
      let x = this.toX(this.owner.logX ? Math.max(pin.at, this.range[0]) : pin.at);
      if (!(pin.at <= this.range[1] && pin.to >= this.range[0]) || !Number.isFinite(x)) return null;
      x = Math.max(MARGIN.l + 8, x);
      while (taken.some((other) => Math.abs(other - x) < 18)) x += 18;
      taken.push(x);
      const drawn = svg("g", { class: "pin", "data-pin": pin.number }, svg("title", {}, pin.says), svg("circle", { cx: x, cy: MARGIN.t, r: 8, fill: pin.colour }), svg("text", { x, y: MARGIN.t + 4, "text-anchor": "middle", fill: colour("paper"), "font-weight": 600 }, String(pin.number)));
      drawn.addEventListener("pointerdown", (event) => event.stopPropagation());
      drawn.addEventListener("click", () => this.owner.onPin?.(pin.number));
      return drawn;
    });
  }

  // --- pointer: drag to zoom or to move, two fingers to zoom, one finger scrolls the page and reads the curve

  inside(event) {
    const box = this.plot.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  pressedDown(event) {
    const [x, y] = this.inside(event);
    this.pointers.set(event.pointerId, x);
    if (event.pointerType === "touch") {
      this.pinch = this.pointers.size === 2 ? { xs: [...this.pointers.values()].map((px) => this.fromX(px)) } : null;
      return this.moved(event);
    }
    if (event.button !== 0 || !this.range || x < MARGIN.l - 6 || y > this.height) return undefined;
    this.dragged = { x, y, range: this.range };
    return this.stage.setPointerCapture(event.pointerId);
  }

  moved(event) {
    const [x, y] = this.inside(event);
    if (this.pointers.has(event.pointerId)) this.pointers.set(event.pointerId, x);
    if (this.pinch && this.pointers.size === 2) return this.pinched();
    if (this.dragged && this.owner.drag === "pan") {
      const [low, high] = this.axisRange(this.dragged.range);
      const by = ((this.dragged.x - x) / (this.width - MARGIN.l - MARGIN.r)) * (high - low);
      return this.owner.zoom([low + by, high + by].map((each) => this.unlog(each)));
    }
    if (this.dragged) this.drawSelection(x, y);
    const isThere = x >= MARGIN.l - 2 && x <= this.width - MARGIN.r + 2 && this.fromX;
    this.pointerY = y;
    return this.owner.point(isThere ? this.fromX(x) : null, this);
  }

  pinched() {
    const [one, other] = [...this.pointers.values()];
    const [a, b] = this.pinch.xs;
    if (Math.abs(one - other) < 12 || this.owner.logX) return;
    const per = (b - a) / (other - one);
    if (!(per > 0)) return;
    const low = a - (one - MARGIN.l) * per;
    this.owner.zoom([low, low + (this.width - MARGIN.l - MARGIN.r) * per]);
  }

  isUpright(x, y) {
    return Math.abs(x - this.dragged.x) < 14 && Math.abs(y - this.dragged.y) > 24;
  }

  drawSelection(x, y) {
    const [left, right] = [Math.max(MARGIN.l, Math.min(x, this.dragged.x)), Math.min(this.width - MARGIN.r, Math.max(x, this.dragged.x))];
    const isUpright = this.isUpright(x, y);
    this.box.hidden = right - left < 4 && !isUpright;
    const [top, height] = isUpright ? [Math.min(y, this.dragged.y), Math.abs(y - this.dragged.y)] : [MARGIN.t, this.height - MARGIN.t - MARGIN.b];
    const place = isUpright ? { left: MARGIN.l, width: this.width - MARGIN.l - MARGIN.r } : { left, width: right - left };
    for (const [key, value] of Object.entries({ ...place, top, height })) this.box.style.setProperty(key, `${value}px`);
  }

  lifted(event) {
    this.pointers.delete(event.pointerId);
    if (this.pointers.size < 2) this.pinch = null;
    const from = this.dragged;
    const [x, y] = this.inside(event);
    const isUpright = from && this.isUpright(x, y);
    this.dragged = null;
    this.box.hidden = true;
    if (!from || this.owner.drag === "pan" || event.type === "pointercancel") return;
    if (isUpright) {
      const per = (this.high - this.low) / (this.height - MARGIN.t - MARGIN.b);
      this.yRange = [Math.max(y, from.y), Math.min(y, from.y)].map((px) => this.high - (px - MARGIN.t) * per);
      this.show(this.range);
      this.owner.fillBar();
    } else if (Math.abs(x - from.x) >= 4) {
      const edges = [x, from.x].map((px) => Math.min(this.width - MARGIN.r, Math.max(MARGIN.l, px))).sort((a, b) => a - b);
      this.owner.zoom(edges.map((px) => this.fromX(px)));
    }
  }

  left(event) {
    this.pointers.delete(event.pointerId);
    if (!this.dragged) this.owner.point(null);
  }

  twice() {
    this.owner.reset();
  }

  /** With ctrl, which is also what two fingers on a touchpad send; the wheel alone scrolls the page. */
  wheeled(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.owner.scale(event.deltaY > 0 ? 1.25 : 0.8);
  }

  // --- the crosshair: of each curve the nearest point that was measured, and where that is

  read(x, isHere = false) {
    if (!this.spec || !this.range || !this.toX) return;
    const isSeen = x !== null && x !== undefined && x >= this.range[0] && x <= this.range[1];
    this.hair.hidden = !isSeen;
    this.tip.hidden = !isSeen || !isHere;
    if (isSeen) this.hair.style.setProperty("left", `${this.toX(x)}px`);
    const found = [];
    for (const item of this.items) {
      const there = isSeen ? this.valueAt(item.series, x) : null;
      item.value.textContent = isSeen ? there.text : item.rest;
      if (there?.text) found.push({ ...there, series: item.series });
    }
    fill(this.dots, found.filter((each) => each.y !== undefined && !this.hidden.has(each.series.key)).map((each) => svg("circle", { cx: each.x, cy: each.y, r: 3.4, fill: each.series.colour, stroke: colour("paper") })));
    if (isHere && isSeen) this.showTip(x, found);
  }

  showTip(x, found) {
    const shown = found.filter((each) => !this.hidden.has(each.series.key));
    const near = this.owner.runs.length > 1 ? shown.reduce((best, each) => (each.y !== undefined && Math.abs(each.y - this.pointerY) < Math.abs((best?.y ?? Infinity) - this.pointerY) ? each : best), null) : null;
    this.owner.highlight(near && Math.abs(near.y - this.pointerY) < 30 ? near.series.group ?? near.series.key : null);
    if (this.owner.runs.length > 1) shown.sort((one, other) => Math.abs((one.y ?? 1e9) - this.pointerY) - Math.abs((other.y ?? 1e9) - this.pointerY));
    fill(
      this.tip,
      el("b", {}, this.owner.placeWords()),
      shown.slice(0, TIP_ROWS).map((each) => el("span", { class: each === near ? "row near" : "row" }, swatchOf(each.series), el("span", {}, each.series.name), el("b", {}, each.text))),
    );
    const at = this.toX(x);
    const isLeft = at > this.width / 2;
    this.tip.style.setProperty("left", isLeft ? "auto" : `${at + 14}px`);
    this.tip.style.setProperty("right", isLeft ? `${this.width - at + 14}px` : "auto");
  }

  valueAt(series, x) {
    const { x: xs, y: ys } = series;
    if (!xs.length) return { text: "" };
    const i = nearest(xs, x);
    const distance = Math.abs(this.toX(xs[i]) - this.toX(x));
    if (!ys) return { text: distance <= MARK_GAP_PX ? series.texts?.[i] ?? "●" : "" };
    const spare = xs.length > 1 ? (xs[xs.length - 1] - xs[0]) / (xs.length - 1) : Infinity;
    if (!Number.isFinite(distance) || x < xs[0] - spare || x > xs[xs.length - 1] + spare) return { text: "" };
    const y = ys[i];
    if (y === null) return { text: series.gap ?? "NaN" };
    const text = show(y, series.kind);
    const isThere = distance <= NEAR_PX || series.isRange;
    const px = series.isRange ? undefined : this.toY(y);
    return { text: isThere ? text : `${text} @ ${this.owner.showX(xs[i])}`, x: this.toX(xs[i]), y: Number.isFinite(px) ? px : undefined };
  }

  pressed(event) {
    const keys = { "+": () => this.owner.scale(0.5), "=": () => this.owner.scale(0.5), "-": () => this.owner.scale(2), 0: () => this.owner.reset() };
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (keys[event.key]) keys[event.key]();
    else if (way && event.shiftKey) this.owner.shift(way * 0.2);
    else if (way) this.stepTo(way);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The crosshair goes to the next point of the first line, and says what is there. */
  stepTo(way) {
    const line = this.seen(this.spec?.lines).find((each) => each.x.length);
    if (!line) return;
    const now = this.owner.at ?? (way > 0 ? this.range[0] : this.range[1]);
    let index = firstAtLeast(line.x, now);
    if (way > 0 && line.x[index] === now) index += 1;
    if (way < 0) index -= 1;
    index = Math.min(line.x.length - 1, Math.max(0, index));
    this.owner.point(line.x[index]);
    announce([this.owner.placeWords(), ...this.items.map(({ series, value }) => `${series.name} ${value.textContent}`)].join(", "));
  }

  /** All other curves step back. */
  highlight(key) {
    for (const group of this.picture?.querySelectorAll(".series") ?? []) group.classList.toggle("dim", key !== null && group.dataset.key !== key);
  }

  // --- the legend, which is also the readout

  fillLegend() {
    this.items = [];
    const shown = [...(this.spec.lines ?? []), ...(this.spec.bars ?? []), ...(this.spec.marks ?? [])].filter((series) => series.name);
    const buttons = shown.map((series) => {
      const rest = series.rest ?? "";
      const value = el("span", { class: "value" }, rest);
      if (series.kind) this.items.push({ series, value, rest });
      if (this.owner.hasLegend) return null;
      if (series.name === this.panel.title) return el("span", { class: "item alone" }, value); // the only curve: the title names it
      const isOn = !this.hidden.has(series.key);
      return el("button", { type: "button", class: "item", title: series.says ?? t("chart.toggle"), "aria-pressed": isOn ? "true" : "false", data: { series: series.key }, on: { click: () => this.owner.hide(series.key, isOn) } }, swatchOf(series), el("span", {}, series.name), value);
    });
    fill(this.legend, buttons);
    roving(this.legend);
  }

  // --- the same numbers as a table, and as files

  fillTable() {
    if (!this.rows.open) return fill(this.table);
    const { lines, xs, all } = this.tableRows(TABLE_ROWS);
    const save = (label, action) => button(label, action, { class: "pick", data: { save: label.toLowerCase() } });
    const name = `${this.owner.runs.map((run) => run.name).slice(0, 3).join("-")}-${this.panel.key}`;
    const tools = el("p", { class: "saves" }, save("CSV", () => saveAs(`${name}.csv`, "text/csv", this.csv())), save("SVG", () => saveAs(`${name}.svg`, "image/svg+xml", this.asSvg())), save("PNG", () => savePng(`${name}.png`, this.asSvg(), this.width, this.height)));
    if (!lines.length) return fill(this.table, tools, el("p", {}, t("chart.empty")));
    const cell = (line, x) => { const i = exact(line.x, x); return i < 0 ? "" : line.y[i] === null ? line.gap ?? "NaN" : show(line.y[i], line.kind); };
    return fill(
      this.table,
      tools,
      xs.length < all ? el("p", { class: "note" }, t("chart.rows", { shown: xs.length, all })) : null,
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, this.owner.axisName()), lines.map((line) => el("th", { scope: "col" }, line.name ?? line.key)))),
        el("tbody", {}, xs.map((x) => el("tr", {}, el("th", { scope: "row" }, this.owner.showX(x)), lines.map((line) => el("td", {}, cell(line, x)))))),
      ),
    );
  }

  /** The places that are seen, thinned; every evaluation stays. */
  tableRows(most) {
    const lines = [...(this.spec?.lines ?? []), ...(this.spec?.bars ?? [])].filter((line) => line.x.length && line.kind);
    const within = (line) => line.x.filter((x) => x >= this.range[0] && x <= this.range[1]);
    const kept = new Set();
    let all = 0;
    for (const line of lines) {
      const seen = within(line);
      const every = Math.max(1, Math.ceil(seen.length / most));
      all = Math.max(all, seen.length);
      seen.forEach((x, i) => { if (i % every === 0 || i === seen.length - 1) kept.add(x); });
    }
    return { lines, xs: [...kept].sort((a, b) => a - b), all };
  }

  csv() {
    const { lines, xs } = this.tableRows(Infinity);
    const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const value = (line, x) => { const i = exact(line.x, x); return i < 0 ? "" : line.y[i] ?? "nan"; };
    return [[this.owner.axisName(), ...lines.map((line) => line.name ?? line.key)].map(quoted).join(","), ...xs.map((x) => [x, ...lines.map((line) => value(line, x))].join(","))].join("\n");
  }

  asSvg() {
    const copy = this.picture.cloneNode(true);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.prepend(svg("rect", { width: this.width, height: this.height, fill: colour("paper") }));
    return new XMLSerializer().serializeToString(copy);
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

const SHAPES = {
  tick: (x, y, bottom) => `M${x} ${bottom}V${bottom - 5}`,
  triangle: (x, y) => `M${x - 3.5} ${y}h7l-3.5 -6z`,
  square: (x, y) => `M${x - 3} ${y}h6v-6h-6z`,
  line: (x, y, bottom) => `M${x} ${bottom}V${MARGIN.t}`,
  cross: (x, y) => `M${x - 4} ${y - 4}l8 8M${x + 4} ${y - 4}l-8 8`,
};

/** A piece of the line as it is drawn. */
export function swatchOf(series) {
  const colours = { stroke: series.colour, fill: series.colour };
  const shape = series.shape ? svg("path", { ...colours, d: SHAPES[series.shape](9, 8, 9) }) : series.y && series.width instanceof Array ? svg("rect", { ...colours, x: 4, y: 1, width: 9, height: 9 }) : svg("line", { x1: 0, x2: 18, y1: 5.5, y2: 5.5, stroke: series.colour, opacity: series.opacity ?? 1, "stroke-width": Math.max(1, 1.4 * (series.width ?? 1.4)), "stroke-dasharray": series.dash ?? "" });
  const dot = series.mode && series.mode !== "lines" ? svg("circle", { ...colours, cx: 9, cy: 5.5, r: 2.6 }) : null;
  return svg("svg", { class: "swatch-line", width: 18, height: 11, "aria-hidden": "true" }, shape, dot);
}

/** One stop of the tab key for all buttons of a group; the arrow keys go from one to the next. */
export function roving(group) {
  const buttons = [...group.querySelectorAll("button:not(:disabled)")];
  const start = buttons.find((each) => each.getAttribute("aria-pressed") === "true") ?? buttons[0];
  for (const each of buttons) each.tabIndex = each === start ? 0 : -1;
  group.onkeydown = (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const at = buttons.indexOf(document.activeElement);
    if (!way || at < 0) return;
    event.preventDefault();
    event.stopPropagation();
    buttons[(at + way + buttons.length) % buttons.length].focus();
  };
}

function extremes(ys) {
  let [low, high] = [Infinity, -Infinity];
  for (const y of ys) {
    if (y < low) low = y;
    if (y > high) high = y;
  }
  return [low, high];
}

/** Without the highest twentieth: the first fall, and spikes. */
function robust(ys) {
  const sorted = Float64Array.from(ys).sort();
  return sorted.length ? [sorted[0], sorted[Math.floor((sorted.length - 1) * 0.95)]] : [Infinity, -Infinity];
}

function between(xs, ys, right, x) {
  const [a, b] = [ys[right - 1], ys[right]];
  return a === null || b === null || a === undefined || b === undefined ? null : a + ((b - a) * (x - xs[right - 1])) / (xs[right] - xs[right - 1] || 1);
}

export function nearest(xs, x) {
  const right = Math.min(xs.length - 1, firstAtLeast(xs, x));
  return right > 0 && x - xs[right - 1] < xs[right] - x ? right - 1 : right;
}

function exact(xs, x) {
  const i = firstAtLeast(xs, x);
  return xs[i] === x ? i : -1;
}

function saveAs(name, type, body) {
  const href = URL.createObjectURL(body instanceof Blob ? body : new Blob([body], { type }));
  el("a", { href, download: name.replace(/[^\w.-]+/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

async function savePng(name, picture, width, height) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(picture)}`;
  await image.decode();
  const canvas = el("canvas", { width: width * 2, height: height * 2 });
  canvas.getContext("2d").drawImage(image, 0, 0, width * 2, height * 2);
  canvas.toBlob((body) => saveAs(name, "image/png", body));
}
