// Several runs over one another, ranked, with what can be said of which is better.

import { here } from "./address.js";
import { Board } from "./board.js";
import { colour, swatchOf } from "./chart.js";
import { button, el, fill } from "./dom.js";
import { stateMark } from "./states.js";
import { show, t } from "./words.js";

const DASHES = ["", "7 3", "2 3", "9 3 2 3"]; // with ten colours: forty lines that can be told apart

export async function compareView(place, source, ids) {
  const rows = new Map((await source.runs()).map((row) => [row.id, row]));
  const known = ids.filter((id) => rows.has(id));
  if (known.length < 2) throw Object.assign(new Error(t("compare.gone")), { faults: [] });
  const names = apart(known.map((id) => rows.get(id).name));
  const runs = known.map((id, i) => ({ id, name: names[i], row: rows.get(id) }));
  paint(runs);
  const board = new Board(source, runs, here().state);
  board.hasLegend = true; // the ranking is the legend of all charts
  const ranking = el("section", { class: "part ranking", "aria-label": t("compare.ranking") });
  const verdict = el("section", { class: "verdict", "aria-label": t("compare.verdict") }, el("p", { class: "skeleton" }, t("compare.waiting")));
  const below = el("div", { class: "below" });
  let found = null;
  const drawRanking = () => fill(ranking, rankingTable(runs, found, board, (id) => leave(id)));
  board.onHidden = drawRanking;
  board.onHighlight = (key) => { for (const row of ranking.querySelectorAll("tr[data-run-id]")) row.classList.toggle("near", row.dataset.runId === key); };
  drawRanking();
  fill(place, el("header", { class: "head" }, el("div", { class: "title" }, el("h1", {}, t("compare.title", { count: runs.length }))), verdict), ranking, board.element, below);
  await board.load();
  const stream = source.listen({ watched: board.lastSteps(), wanted: { x: board.axis, smooth: board.smooth, names: board.wanted().names }, onTail: (id, tail) => board.take(id, tail) });
  try {
    found = await source.compare(known);
    fill(verdict, found.headline.map((words) => el("p", { class: "verdict" }, words)));
    drawRanking();
    fill(below, overSetting(found, runs), differencesTable(found, runs), figuresTable(found, runs), details(found));
  } catch (error) {
    fill(verdict, el("p", { class: "note" }, error.message));
  }

  function leave(id) {
    location.hash = `#/compare/${known.filter((each) => each !== id).join(",")}`;
  }

  return {
    title: `${names.slice(0, 3).join(" · ")}${names.length > 3 ? " …" : ""} – nanolens`,
    board,
    redraw: () => {
      paint(runs);
      drawRanking();
      board.draw();
    },
    close: () => {
      stream.close();
      board.close();
    },
  };
}

/** Best first; runs that one bracket joins cannot be told apart. Each row hides, isolates or removes its run everywhere. */
function rankingTable(runs, found, board, leave) {
  const order = found ? found.ranking.map(({ side }) => side) : runs.map((_, i) => i);
  const columns = found?.brackets ?? [];
  const settings = (found?.differences ?? []).filter((each) => each.key && !each.is_derived).slice(0, 4);
  const head = [t("compare.rank"), t("runs.name"), columns.length ? "≈" : null, t("compare.loss_at"), t("figure.best_val"), t("figure.speed"), ...settings.map((each) => each.what)].filter((each) => each !== null);
  const body = order.map((side, i) => {
    const run = runs[side];
    const isOn = !board.hidden.has(run.id);
    const marks = columns.length ? el("td", { class: "brackets" }, columns.map(([from, to]) => el("i", { class: i < from || i > to ? "" : i === from ? "first" : i === to ? "last" : "mid", title: t("compare.bracket") }))) : null;
    const loss = found?.ranking[i].loss;
    return el(
      "tr",
      { data: { runId: run.id }, class: isOn ? "" : "off", on: { pointerenter: () => board.highlight(run.id), pointerleave: () => board.highlight(null) } },
      el("td", {}, found && loss !== null ? String(i + 1) : "–"),
      el("th", { scope: "row" }, button([swatchOf({ colour: `var(--run-${run.index % 10})`, dash: run.dash, width: 2 })], () => board.hide(run.id, isOn), { class: "eye", "aria-pressed": isOn ? "true" : "false", "aria-label": t("compare.hide", { name: run.name }), title: t("compare.hide", { name: run.name }) }), el("a", { href: `#/run/${run.id}` }, run.name), stateMark(run.row.state), button(t("compare.only"), () => board.isolate(run.id), { class: "link small", tabindex: -1 }), runs.length > 2 ? button("×", () => leave(run.id), { class: "link small", tabindex: -1, "aria-label": t("compare.leave", { name: run.name }) }) : null),
      marks,
      el("td", {}, show(loss ?? null, "nats")),
      el("td", {}, show(run.row.best_val, "nats")),
      el("td", {}, run.row.tokens_per_s ? show(Math.round(run.row.tokens_per_s), "count") : "–"),
      settings.map((each) => el("td", {}, each.values[side])),
    );
  });
  return [
    el("h2", {}, t("compare.ranking")),
    el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": t("compare.ranking") }, el("table", {}, el("thead", {}, el("tr", {}, head.map((words) => el("th", { scope: "col" }, words)))), el("tbody", {}, body))),
    found ? el("p", { class: "note" }, found.how) : null,
  ];
}

function named(run) {
  return [swatchOf({ colour: `var(--run-${run.index % 10})`, dash: run.dash, width: 2 }), " ", run.name];
}

/** What differs between the runs, and whether it can explain a difference in loss. */
export function differencesTable(found, runs = null) {
  const { differences, sides } = found;
  if (!differences.length) return el("section", { class: "part" }, el("h2", {}, t("compare.differences")), el("p", { class: "note" }, t("compare.same")));
  return el(
    "section",
    { class: "part" },
    el("h2", {}, t("compare.differences")),
    differences.length && sides.length > 6
      ? el("ul", { class: "effects" }, differences.map((each) => el("li", {}, el("b", {}, each.what), " ", [...new Set(each.values)].slice(0, 12).join(" | "), " ", el("small", {}, `${each.effect_words}: ${each.because}`))))
      : wide(t("compare.differences"), el("tr", {}, el("th", { scope: "col" }, t("compare.setting")), sides.map((side, i) => el("th", { scope: "col" }, runs ? named(runs[i]) : side.title)), el("th", { scope: "col", class: "words" }, t("compare.effect"))), differences.map((each) => el("tr", { class: each.is_derived ? "derived" : each.effect }, el("th", { scope: "row" }, each.what), each.values.map((value) => el("td", {}, value)), el("td", { class: "words" }, `${each.effect_words}: ${each.because}`)))),
  );
}

function wide(name, head, rows) {
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": name }, el("table", {}, el("thead", {}, head), el("tbody", {}, rows)));
}

/** Runs are rows. */
function figuresTable({ table }, runs) {
  const head = el("tr", {}, el("th", { scope: "col" }, t("runs.name")), table.map((row) => el("th", { scope: "col" }, row.what)));
  return el("section", { class: "part figures-table" }, el("h2", {}, t("compare.figures")), wide(t("compare.figures"), head, runs.map((run, i) => el("tr", {}, el("th", { scope: "row" }, named(run)), table.map((row) => el("td", {}, row.cells[i]))))));
}

function details({ verdicts, remarks }) {
  if (!verdicts.length && !remarks.length) return null;
  return el("details", { class: "part pairs" }, el("summary", {}, t("compare.pairs", { count: verdicts.length })), verdicts.map((each) => el("p", { class: `verdict ${each.role}` }, each.words)), remarks.length ? [el("h3", {}, t("compare.known")), el("ul", {}, remarks.map((each) => el("li", {}, each)))] : null);
}

/** Loss over the one numeric setting with most values: a sweep at a glance. */
function overSetting({ differences, ranking }, runs) {
  const numbers = (each) => each.numbers ?? [];
  const [best] = differences.filter((each) => !each.is_derived && each.key !== "seed" && new Set(numbers(each).filter((x) => x !== null)).size > 2).sort((one, other) => new Set(numbers(other)).size - new Set(numbers(one)).size);
  if (!best) return null;
  const points = ranking.filter(({ side, loss }) => loss !== null && best.numbers[side] !== null).map(({ side, loss }) => ({ x: best.numbers[side], y: loss, run: runs[side] }));
  if (points.length < 3) return null;
  const rows = [...points].sort((one, other) => one.x - other.x);
  const [low, high] = [Math.min(...rows.map((p) => p.y)), Math.max(...rows.map((p) => p.y))];
  return el("section", { class: "part over" }, el("h2", {}, t("compare.over", { setting: best.what })), el("ul", {}, rows.map((p) => el("li", {}, el("span", { class: "x" }, best.values[runs.indexOf(p.run)]), el("span", { class: "track" }, el("i", { style: { left: `${(100 * (p.y - low)) / (high - low || 1)}%`, background: `var(--run-${p.run.index % 10})` }, title: p.run.name })), el("b", {}, show(p.y, "nats"))))));
}

function paint(runs) {
  for (const [i, run] of runs.entries()) Object.assign(run, { index: i, colour: colour(`run-${i % 10}`), dash: DASHES[Math.floor(i / 10) % DASHES.length] });
}

function apart(names) {
  return names.map((name, i) => (names.indexOf(name) === names.lastIndexOf(name) ? name : `${name} (${i + 1})`));
}
