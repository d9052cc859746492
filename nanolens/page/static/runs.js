// All runs: how far, how good, how fast, how well; choose some to lay over one another.

import { button, el, fill, keepingFocus, seldom, svg } from "./dom.js";
import { differencesTable } from "./compare.js";
import { isFaulty, stateMark } from "./states.js";
import { show, t } from "./words.js";

const FILTERS = { all: () => true, running: (row) => row.state === "running", finished: (row) => row.state === "finished", stopped: (row) => row.state === "stopped", faulty: isFaulty };
const chosen = new Set(); // kept while the page is open

export async function runsView(place, source, openLog) {
  const rows = new Map((await source.runs()).map((row) => [row.id, row]));
  let filter = "all";
  const search = el("input", { type: "search", class: "search", placeholder: t("runs.search"), "aria-label": t("runs.search"), data: { shortcut: "/" } });
  const filters = el("div", { class: "group", role: "group", "aria-label": t("runs.filter") });
  const list = el("div", { class: "runs", role: "table", "aria-label": t("runs.title") });
  const tray = el("section", { class: "tray", hidden: true });
  search.addEventListener("input", () => draw());
  fill(place, el("header", { class: "head" }, el("div", { class: "title" }, el("h1", {}, t("runs.title"))), el("div", { class: "bar" }, search, filters)), list, tray);

  function draw() {
    keepingFocus(place, drawAll);
  }

  function drawAll() {
    const word = search.value.toLowerCase();
    const all = [...rows.values()];
    fill(filters, Object.entries(FILTERS).map(([key, test]) => button(`${t(`filter.${key}`)} ${all.filter(test).length}`, () => { filter = key; draw(); }, { class: "pick", "aria-pressed": filter === key ? "true" : "false", data: { filter: key, key: `filter-${key}` } })));
    const found = all.filter((row) => FILTERS[filter](row) && `${row.name} ${row.dataset ?? ""} ${row.trainer ?? ""}`.toLowerCase().includes(word));
    if (!all.length) fill(list, nothing(openLog));
    else fill(list, header(), found.map((row) => line(row, choose)));
  }

  function choose(id, is) {
    if (is) chosen.add(id);
    else chosen.delete(id);
    drawTray();
  }

  const differences = el("div", {});
  const compareSoon = seldom(200, async () => {
    const ids = [...chosen].filter((id) => rows.has(id));
    if (ids.length < 2) return;
    try {
      fill(differences, differencesTable(await source.compare(ids)));
    } catch (error) {
      fill(differences, el("p", { class: "note" }, error.message));
    }
  });

  function drawTray() {
    const ids = [...chosen].filter((id) => rows.has(id));
    tray.hidden = ids.length < 2;
    if (tray.hidden) return;
    fill(tray, el("div", { class: "tools" }, el("b", {}, t("runs.chosen", { count: ids.length })), el("a", { class: "main", href: `#/compare/${ids.join(",")}` }, t("runs.overlay")), button(t("runs.clear"), () => { chosen.clear(); draw(); drawTray(); }, { class: "pick" })), differences);
    compareSoon();
  }

  draw();
  drawTray();
  const drawSoon = seldom(300, draw);
  const stream = source.listen({
    onRow: (id, row) => {
      rows.set(id, { ...row, id });
      drawSoon();
    },
  });
  return { title: t("runs.title"), redraw: draw, close: () => stream.close() };
}

function header() {
  const names = ["", "runs.name", "runs.curve", "figure.step", "figure.best_val", "figure.loss", "figure.speed", "figure.left", "findings.title"];
  return el("div", { class: "line names", role: "row" }, names.map((name) => el("span", { role: "columnheader" }, name ? t(name) : el("span", { class: "unseen" }, t("runs.choose")))));
}

function line(row, choose) {
  const box = el("input", { type: "checkbox", checked: chosen.has(row.id), "aria-label": t("runs.choose_one", { name: row.name }), data: { key: `choose-${row.id}` }, on: { change: (event) => choose(row.id, event.target.checked) } });
  const done = row.max_iters ? Math.min(1, row.step / row.max_iters) : null;
  const cell = (name, label, ...children) => el("span", { role: "cell", class: name, data: { label } }, children);
  return el(
    "div",
    { class: "line", role: "row", data: { run: row.name } },
    cell("box", "", box),
    cell("name", "", el("a", { href: `#/run/${row.id}`, data: { key: `open-${row.id}` } }, row.name), stateMark(row.state), row.dataset ? el("small", {}, row.dataset) : null),
    cell("curve", "", sparkline(row.spark ?? [])),
    cell("steps", t("figure.step"), show(row.step, "count"), row.max_iters ? el("small", {}, ` / ${show(row.max_iters, "count")}`) : null, done === null ? null : el("div", { class: "progress" }, el("div", { style: { width: `${done * 100}%` } }))),
    cell("number", t("figure.best_val"), el("b", {}, show(row.best_val ?? row.val, "nats"))),
    cell("number", t("figure.loss"), row.is_bad ? el("b", { class: "bad" }, "NaN") : show(row.loss, "nats")),
    cell("number", t("figure.speed"), row.tokens_per_s ? show(Math.round(row.tokens_per_s), "count") : "–"),
    cell("number", t("figure.left"), row.left_s ? show(row.left_s, "seconds") : "–"),
    cell("badges", t("findings.title"), badges(row)),
  );
}

function badges(row) {
  if (row.findings === undefined) return el("small", {}, "…");
  if (!row.findings) return el("small", {}, "–");
  const others = row.findings - row.faults;
  return [row.faults ? el("span", { class: "badge fault", title: row.worst.join(", ") }, String(row.faults)) : null, others ? el("span", { class: "badge" }, String(others)) : null];
}

function sparkline(points) {
  if (points.length < 2) return null;
  const path = points.map(([x, y]) => `${(x * 110 + 1).toFixed(1)},${(27 - y * 25).toFixed(1)}`).join(" ");
  return svg("svg", { viewBox: "0 0 112 28", class: "spark", "aria-hidden": "true", preserveAspectRatio: "none" }, svg("polyline", { points: path }));
}

function nothing(openLog) {
  return el("div", { class: "nothing" }, el("p", {}, t("runs.none")), el("code", {}, "nanolens train"), el("p", {}, t("runs.or_log")), button(t("log.open"), openLog, { class: "main" }));
}
