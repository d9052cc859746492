// Several runs over one another, with what can be said of which is better.

import { Board } from "./board.js";
import { colour } from "./chart.js";
import { el, fill } from "./dom.js";
import { t } from "./words.js";

export async function compareView(place, source, ids) {
  const rows = new Map((await source.runs()).map((row) => [row.id, row]));
  const known = ids.filter((id) => rows.has(id));
  if (known.length < 2) throw Object.assign(new Error(t("compare.gone")), { faults: [] });
  const names = apart(known.map((id) => rows.get(id).name));
  const runs = known.map((id, i) => ({ id, name: names[i], row: rows.get(id) }));
  paint(runs);
  const board = new Board(source, runs);
  const verdict = el("aside", { class: "findings verdict", "aria-label": t("compare.verdict") });
  const below = el("div", { class: "below" });
  const keys = el("p", { class: "facts" }, runs.map((run, i) => el("a", { href: `#/run/${run.id}`, class: "key" }, el("span", { class: "swatch", style: { "--colour": `var(--run-${i % 10})` } }), run.name)));
  fill(place, el("header", { class: "head" }, el("div", { class: "title" }, el("h1", {}, t("compare.title", { count: runs.length }))), keys), el("div", { class: "columns" }, board.element, verdict), below);
  await board.load();
  const stream = source.listen({ watched: board.lastSteps(), wanted: { x: board.axis, smooth: board.smooth, names: board.wanted().names }, onTail: (id, tail) => board.take(id, tail) });
  try {
    const found = await source.compare(known);
    fill(
      verdict,
      el("h2", {}, t("compare.verdict")),
      found.verdicts.map((each) => el("p", { class: `verdict ${each.role}` }, each.words)),
      found.remarks.length ? [el("h3", {}, t("compare.known")), el("ul", {}, found.remarks.map((each) => el("li", {}, each)))] : null,
    );
    fill(below, differencesTable(found), figuresTable(found));
  } catch (error) {
    fill(verdict, el("h2", {}, t("compare.verdict")), el("p", { class: "note" }, error.message));
  }
  return {
    title: names.join(" · "),
    board,
    redraw: () => {
      paint(runs);
      board.draw();
    },
    close: () => {
      stream.close();
      board.close();
    },
  };
}

/** What differs between the runs, and whether it can explain a difference in loss. */
export function differencesTable(found) {
  const { differences, sides } = found;
  if (!differences.length) return el("section", { class: "part" }, el("h2", {}, t("compare.differences")), el("p", { class: "note" }, t("compare.same")));
  return el(
    "section",
    { class: "part" },
    el("h2", {}, t("compare.differences")),
    el("div", { class: "wide" }, el(
      "table",
      {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), sides.map((side) => el("th", { scope: "col" }, side.name)), el("th", { scope: "col", class: "words" }, t("compare.effect")))),
      el("tbody", {}, differences.map((each) => el("tr", { class: each.is_derived ? "derived" : each.effect }, el("th", { scope: "row" }, each.what), each.values.map((value) => el("td", {}, value)), el("td", { class: "words" }, `${each.effect_words}: ${each.because}`)))),
    )),
  );
}

function figuresTable({ table, sides }) {
  return el(
    "section",
    { class: "part" },
    el("h2", {}, t("compare.figures")),
    el("div", { class: "wide" }, el(
      "table",
      {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), sides.map((side) => el("th", { scope: "col" }, side.name)))),
      el("tbody", {}, table.map((row) => el("tr", {}, el("th", { scope: "row" }, row.what), row.cells.map((cell) => el("td", {}, cell))))),
    )),
  );
}

function paint(runs) {
  for (const [i, run] of runs.entries()) run.colour = colour(`run-${i % 10}`);
}

function apart(names) {
  return names.map((name, i) => (names.indexOf(name) === names.lastIndexOf(name) ? name : `${name} (${i + 1})`));
}
