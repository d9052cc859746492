// All runs, as a lab book: how far, how good, how fast, how well, when, and by which settings they differ; choose some to compare.

import { here, keep } from "./address.js";
import { button, el, fill, keepingFocus, seldom, svg } from "./dom.js";
import { differencesTable } from "./compare.js";
import { isFaulty, stateMark } from "./states.js";
import { show, t } from "./words.js";

const FILTERS = { all: () => true, running: (row) => row.state === "running", finished: (row) => row.state === "finished", stopped: (row) => row.state === "stopped", faulty: isFaulty };
const DEAD = ["gone", "failed", "unreadable"];
const MOST_SETTINGS = 3; // columns of settings that differ
const IN_VIEW = 40; // rows that are read first
const chosen = new Set(); // kept while the page is open

/** Columns that can be sorted by: what of a row, and whether the largest comes first. */
const COLUMNS = {
  name: [(row) => row.name.toLowerCase()],
  step: [(row) => row.step, true],
  best_val: [(row) => row.best_val],
  loss: [(row) => (row.is_bad || typeof row.loss !== "number" ? null : row.loss)],
  speed: [(row) => row.tokens_per_s, true],
  age: [(row) => row.changed_at_s, true],
  findings: [(row) => (row.findings === undefined ? null : row.faults * 100 + row.findings), true],
};

export async function runsView(place, source, openLog) {
  const rows = new Map((await source.runs()).map((row) => [row.id, row]));
  const { state } = here();
  let filter = FILTERS[state.get("show")] ? state.get("show") : "all";
  let [sort, isDown] = [(state.get("sort") ?? "").replace(/^-/, ""), (state.get("sort") ?? "").startsWith("-")];
  for (const id of (state.get("pick") ?? "").split(",").filter(Boolean)) chosen.add(id);
  const search = el("input", { type: "search", class: "search", value: state.get("q") ?? "", placeholder: t("runs.search"), title: t("runs.search_says"), "aria-label": t("runs.search"), data: { shortcut: "/" } });
  const filters = el("div", { class: "group", role: "group", "aria-label": t("runs.filter") });
  const progress = el("p", { class: "note reading", role: "status" });
  const list = el("div", { class: "runs", role: "table", "aria-label": t("runs.title") });
  const tray = el("section", { class: "tray", hidden: true, "aria-label": t("runs.choose") });
  search.addEventListener("input", () => draw());
  const all = button(t("runs.choose_all"), () => chooseShown(), { class: "pick", data: { act: "choose-all" } });
  fill(place, el("header", { class: "head" }, el("div", { class: "title" }, el("h1", {}, t("runs.title")), progress), el("div", { class: "bar" }, search, filters, all)), list, tray);
  let shown = [];

  function draw() {
    keepingFocus(place, drawAll);
    keep({ q: search.value, show: filter === "all" ? "" : filter, sort: sort ? `${isDown ? "-" : ""}${sort}` : "", pick: [...chosen].join(",") });
  }

  function drawAll() {
    const every = [...rows.values()];
    const waiting = every.filter((row) => row.findings === undefined && row.state !== "unreadable").length;
    progress.textContent = waiting ? t("runs.reading", { done: every.length - waiting, all: every.length }) : "";
    const count = (key, test) => (key === "faulty" && waiting ? `${every.filter(test).length}…` : every.filter(test).length);
    fill(filters, Object.entries(FILTERS).map(([key, test]) => button(`${t(`filter.${key}`)} ${count(key, test)}`, () => { filter = key; draw(); }, { class: "pick", "aria-pressed": filter === key ? "true" : "false", data: { filter: key, key: `filter-${key}` } })));
    const test = parsed(search.value);
    shown = sorted(every.filter((row) => FILTERS[filter](row) && test(row)), sort, isDown);
    const settings = differing(shown);
    list.style.setProperty("--settings", settings.length);
    if (!every.length) fill(list, nothing(openLog));
    else if (!shown.length) fill(list, el("p", { class: "nothing" }, t("runs.not_found"), button(t("runs.show_all"), () => { search.value = ""; filter = "all"; draw(); }, { class: "link" })));
    else fill(list, header(settings), shown.map((row) => line(row, settings, scaleOf(every, row), choose)));
  }

  function header(settings) {
    const name = (key, words) => {
      const isOn = sort === key;
      return el("span", { role: "columnheader", class: key, "aria-sort": isOn ? (isDown ? "descending" : "ascending") : "none" }, button([words, isOn ? (isDown ? " ↓" : " ↑") : ""], () => {
        [sort, isDown] = isOn ? [sort, !isDown] : [key, Boolean(COLUMNS[key]?.[1])];
        draw();
      }, { class: "sort", tabindex: -1, data: { sort: key, key: `sort-${key}` } }));
    };
    const plainName = (words, about = {}) => el("span", { role: "columnheader", ...about }, words);
    const made = el("div", { class: "line names", role: "row" }, plainName(el("span", { class: "unseen" }, t("runs.choose"))), name("name", t("runs.name")), plainName(t("runs.curve")), name("step", t("figure.step")), name("best_val", t("figure.best_val")), name("loss", t("figure.loss")), name("speed", t("figure.speed")), name("age", t("runs.age")), settings.map((key) => name(key, key)), name("findings", t("findings.title")));
    made.querySelector("button").tabIndex = 0; // the arrow keys go from column to column
    made.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const buttons = [...made.querySelectorAll("button")];
      if (way) buttons[(buttons.indexOf(document.activeElement) + way + buttons.length) % buttons.length].focus();
    });
    return made;
  }

  function choose(id, is) {
    if (is) chosen.add(id);
    else chosen.delete(id);
    draw();
    drawTray();
  }

  function chooseShown() {
    const isAll = shown.every((row) => chosen.has(row.id));
    for (const row of shown) if (isAll) chosen.delete(row.id); else chosen.add(row.id);
    draw();
    drawTray();
  }

  const differences = el("div", {});
  const compareSoon = seldom(200, async () => {
    const ids = [...chosen].filter((id) => rows.has(id));
    if (ids.length < 2 || ids.length > 8) return fill(differences);
    if (!differences.hasChildNodes()) fill(differences, el("p", { class: "skeleton" }, t("compare.waiting")));
    try {
      return fill(differences, differencesTable(await source.compare(ids)));
    } catch (error) {
      return fill(differences, el("p", { class: "note" }, error.message));
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
  const askFirst = () => {
    const waiting = shown.filter((row) => row.findings === undefined).slice(0, IN_VIEW).map((row) => row.id);
    if (waiting.length && waiting.length < rows.size) source.look(waiting).catch(() => {});
  };
  askFirst();
  search.addEventListener("input", seldom(400, askFirst));
  const drawSoon = seldom(300, draw);
  const stream = source.listen({
    onRow: (id, row) => {
      rows.set(id, { ...row, id });
      drawSoon();
    },
  });
  return { title: `${t("runs.title")} – nanolens`, redraw: draw, close: () => stream.close() };
}

// --- what is shown: `lr>1e-3 dropout=0 status:dead /regex/ word`

const SHORT = { lr: "learning_rate", layers: "n_layer", batch: "batch_size", bs: "batch_size", val: "best_val", best: "best_val" };

export function parsed(text) {
  const tests = text.split(/\s+/).filter(Boolean).map(testOf);
  return (row) => tests.every((test) => test(row));
}

function testOf(word) {
  const [, name, sign, wanted] = word.match(/^([A-Za-z_]\w*)(!=|<=|>=|=|<|>|:)(.*)$/) ?? [];
  if (name === "status" || name === "state") return (row) => (wanted === "dead" ? DEAD.includes(row.state) : row.state.includes(wanted));
  if (sign && sign !== ":") return (row) => compares(valueOf(row, name), sign, wanted);
  if (sign === ":") return (row) => String(valueOf(row, name) ?? "").toLowerCase().includes(wanted.toLowerCase());
  const pattern = word.match(/^\/(.+?)\/?$/);
  let found = null;
  try {
    found = new RegExp(pattern ? pattern[1] : word, "i");
  } catch {
    found = null; // not an expression (yet): it is a word
  }
  return (row) => {
    const all = `${row.name} ${row.dataset ?? ""} ${row.trainer ?? ""} ${(row.worst ?? []).join(" ")}`;
    return all.toLowerCase().includes(word.toLowerCase()) || Boolean(found?.test(all));
  };
}

function valueOf(row, name) {
  const key = SHORT[name] ?? name;
  return row.settings?.[key] ?? row[key];
}

function compares(value, sign, wanted) {
  if (value === undefined || value === null) return sign === "!=";
  const [one, other] = [Number(value), Number(wanted)];
  const areNumbers = wanted !== "" && Number.isFinite(one) && Number.isFinite(other) && typeof value !== "boolean";
  const order = areNumbers ? Math.sign(one - other) : String(value).toLowerCase().localeCompare(wanted.toLowerCase());
  return { "=": order === 0, "!=": order !== 0, "<": order < 0, ">": order > 0, "<=": order <= 0, ">=": order >= 0 }[sign];
}

function sorted(rows, sort, isDown) {
  if (!sort) return rows;
  const value = COLUMNS[sort]?.[0] ?? ((row) => row.settings?.[sort]);
  const isNone = (each) => each === null || each === undefined;
  return [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (isNone(a) || isNone(b)) return isNone(a) - isNone(b); // unknown ones last, either way
    return (a < b ? -1 : a > b ? 1 : 0) * (isDown ? -1 : 1);
  });
}

/** Settings that differ among the runs, those with most values first. */
function differing(rows) {
  const values = new Map();
  for (const row of rows) for (const [key, value] of Object.entries(row.settings ?? {})) values.set(key, (values.get(key) ?? new Set()).add(String(value)));
  return [...values].filter(([key, found]) => found.size > 1 && key !== "dataset").sort((one, other) => other[1].size - one[1].size).slice(0, MOST_SETTINGS).map(([key]) => key);
}

/** One scale for all curves of a corpus: a lower line is a lower loss. */
function scaleOf(rows, { dataset }) {
  const ys = rows.filter((row) => row.dataset === dataset).flatMap((row) => (row.spark ?? []).map(([, y]) => y)).sort((a, b) => a - b);
  return [ys[0] ?? 0, ys[Math.floor((ys.length - 1) * 0.9)] ?? 1];
}

function line(row, settings, scale, choose) {
  const box = el("input", { type: "checkbox", checked: chosen.has(row.id), "aria-label": t("runs.choose_one", { name: row.name }), data: { key: `choose-${row.id}` }, on: { change: (event) => choose(row.id, event.target.checked) } });
  const done = row.max_iters ? Math.min(1, row.step / row.max_iters) : null;
  const cell = (name, label, ...children) => el("span", { role: "cell", class: name, data: { label } }, children);
  const ago = row.changed_at_s ? show(Math.max(0, Date.now() / 1000 - row.changed_at_s), "age") : "–";
  return el(
    "div",
    { class: "line", role: "row", data: { run: row.name } },
    cell("box", "", box),
    cell("name", "", el("a", { href: `#/run/${row.id}`, data: { key: `open-${row.id}` } }, row.name), stateMark(row.state), row.dataset ? el("small", {}, row.dataset) : null),
    cell("curve", "", sparkline(row.spark ?? [], scale)),
    cell("steps", t("figure.step"), show(row.step, "count"), row.max_iters ? el("small", {}, ` / ${show(row.max_iters, "count")}`) : null, row.left_s ? el("small", {}, ` · ${show(row.left_s, "seconds")} ${t("figure.left")}`) : null, done === null ? null : el("div", { class: "progress" }, el("div", { style: { width: `${done * 100}%` } }))),
    cell("number", t("figure.best_val"), row.is_partial ? "…" : el("b", {}, show(row.best_val, "nats"))),
    cell("number", t("figure.loss"), row.is_bad ? el("b", { class: "bad" }, "NaN") : show(row.loss, "nats")),
    cell("number", t("figure.speed"), row.tokens_per_s ? show(Math.round(row.tokens_per_s), "count") : "–"),
    cell("number age", t("runs.age"), el("time", { title: row.changed_at_s ? new Date(row.changed_at_s * 1000).toLocaleString() : "" }, ago)),
    settings.map((key) => cell("number setting", key, settingText(row.settings?.[key]))),
    cell("badges", t("findings.title"), badges(row)),
  );
}

function settingText(value) {
  return typeof value === "number" ? show(value, Number.isInteger(value) ? "count" : "rate") : String(value ?? "–");
}

function badges(row) {
  if (row.findings === undefined) return el("small", {}, row.state === "unreadable" ? "–" : "…");
  if (!row.findings) return el("small", {}, "–");
  const others = row.findings - row.faults;
  return [row.faults ? el("span", { class: "badge fault", title: row.worst.join(", ") }, String(row.faults)) : null, others ? el("span", { class: "badge" }, String(others)) : null];
}

function sparkline(points, [low, high]) {
  if (points.length < 2) return null;
  const height = (y) => 26 - Math.min(1, Math.max(0, (y - low) / (high - low || 1))) * 24;
  const path = points.map(([x, y]) => `${(x * 110 + 1).toFixed(1)},${height(y).toFixed(1)}`).join(" ");
  return svg("svg", { viewBox: "0 0 112 28", class: "spark", "aria-hidden": "true", preserveAspectRatio: "none" }, svg("polyline", { points: path }));
}

function nothing(openLog) {
  return el("div", { class: "nothing" }, el("p", {}, t("runs.none")), el("code", {}, "nanolens train"), el("p", {}, t("runs.or_log")), button(t("log.open"), openLog, { class: "main" }));
}
