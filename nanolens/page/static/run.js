// One run: what is the matter with it, figures, curves with their findings on and beside them, samples, settings, and a place to try the model.

import { here } from "./address.js";
import { Board } from "./board.js";
import { el, fill, seldom } from "./dom.js";
import { copyable, findingsPanel, headline, openFinding } from "./findings.js";
import { familyPanel, settingsPanel, samplesPanel, timeStrip } from "./parts.js";
import { stateMark } from "./states.js";
import { tryPanel } from "./try.js";
import { show, t } from "./words.js";

export async function runView(place, source, id) {
  const view = await source.run(id);
  const run = { id, name: view.row.name, colour: "", row: view.row, view };
  const board = new Board(source, [run], here().state);
  const head = el("header", { class: "head" });
  const findings = el("aside", { class: "findings", "aria-label": t("findings.title") }, el("h2", {}, t("findings.title")), el("p", { class: "skeleton" }, t("findings.waiting")));
  const below = el("div", { class: "below" });
  let found = null; // what the diagnosis says
  drawHead();
  fill(place, head, el("div", { class: "columns" }, board.element, findings), below);
  fillBelow(below, source, id, view, board);
  board.onPin = (number) => openFinding(findings, number);
  await board.load();
  loadFindings();
  loadForecast();
  let stream = null;
  let listening = "";
  listen();

  function drawHead() {
    fillHead(head, run.view, source, id, found, showFinding);
  }

  function showFinding(finding, number) {
    run.shownFinding = number;
    board.goTo(finding.from_step, finding.to_step);
    board.draw();
  }

  async function loadFindings() {
    try {
      found = await source.findings(id);
      run.findings = found.findings;
      findingsPanel(findings, found, run, { show: showFinding, goTo: (step) => board.goTo(step) });
      drawHead();
      board.draw();
    } catch (error) {
      fill(findings, el("h2", {}, t("findings.title")), el("p", { class: "trouble" }, error.message));
    }
  }

  async function loadForecast() {
    run.forecast = await source.forecast(id);
    if (run.forecast?.because && run.view.row.state === "running") findings.querySelector(".no-forecast")?.remove();
    if (run.forecast?.because && run.view.row.state === "running") findings.append(el("p", { class: "note no-forecast" }, t("findings.no_forecast", { because: run.forecast.because })));
    board.draw();
  }

  /** The stream says which axis and smoothing its news should have; another choice opens it anew. */
  function listen() {
    if (source.isFile) return;
    const wanted = { x: board.axis, smooth: board.smooth };
    const now = JSON.stringify(wanted);
    if (now === listening) return;
    listening = now;
    stream?.close();
    stream = source.listen({
      watched: board.lastSteps(),
      wanted,
      onRow: (other, row) => {
        if (other === id) took(row);
      },
      onTail: (other, tail) => board.take(other, tail),
    });
  }

  const refresh = seldom(4000, async () => {
    run.view = await source.run(id);
    fillBelow(below, source, id, run.view, board);
    board.draw();
    await loadFindings();
    if (run.view.row.state === "running") await loadForecast();
  });

  function took(row) {
    const was = run.view.row;
    run.view = { ...run.view, row };
    run.row = row;
    drawHead();
    document.title = titleOf(row);
    if (row.state !== was.state || row.best_step !== was.best_step || row.findings !== was.findings) refresh();
    listen();
  }

  const listenAgain = seldom(300, listen);
  board.element.addEventListener("click", listenAgain);
  return {
    title: titleOf(run.row),
    board,
    redraw: () => board.draw(),
    close: () => {
      stream?.close();
      board.close();
    },
  };
}

/** With how far it is, while it goes on: it is read in the browser's tab. */
function titleOf(row) {
  const done = row.state === "running" && row.max_iters ? `${show(Math.floor((100 * row.step) / row.max_iters) / 100, "share")} ` : "";
  return `${done}${row.name} – nanolens`;
}

function fillHead(head, view, source, id, found, showFinding) {
  const { row, ending } = view;
  const done = row.max_iters ? Math.min(1, row.step / row.max_iters) : null;
  const figure = (label, value, unit = "", more = "") => (value === null ? null : el("div", { class: "figure" }, el("span", { class: "label" }, label), el("span", { class: "number" }, value, unit ? el("small", {}, unit) : null), el("span", { class: "more" }, more)));
  const best = row.best_val === null || row.best_val === undefined ? "–" : show(row.best_val, "nats");
  const error = row.best_se ? t("figure.error", { error: row.best_se, step: row.best_step }) : row.best_step !== null && row.best_step !== undefined ? t("where.step", { step: row.best_step }) : "";
  fill(
    head,
    el("div", { class: "title" }, el("h1", {}, row.name), stateMark(row.state), source.isFile ? null : el("a", { class: "quiet", href: source.reportAddress(id), download: "" }, t("run.save_report"))),
    ending && row.state !== "running" ? el("div", { class: `ending ${row.state}` }, el("p", {}, ending.words), ending.command ? copyable(ending.command) : null) : null,
    headline(found, showFinding, row.state),
    view.reading ? el("p", { class: "note" }, view.reading) : null,
    el("p", { class: "facts" }, view.facts.map((fact) => el("span", {}, el("b", {}, fact.what), " ", fact.value))),
    done === null ? null : el("div", { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": row.max_iters, "aria-valuenow": row.step, "aria-label": t("figure.step") }, el("div", { style: { width: `${done * 100}%` } })),
    el(
      "div",
      { class: "figures" },
      figure(t("figure.best_val"), best, "", error),
      figure(t("figure.loss"), row.is_bad ? "NaN" : show(row.loss, "nats")),
      figure(t("figure.step"), show(row.step, "count"), row.max_iters ? ` / ${show(Math.max(row.step, row.max_iters), "count")}` : ""),
      figure(t("figure.speed"), row.tokens_per_s ? show(row.tokens_per_s, "count").replace(/\.\d$/, "") : "–", " tokens/s"),
      figure(t("figure.mfu"), row.mfu ? show(row.mfu, "share") : "–"),
      row.state === "running" ? figure(t("figure.left"), row.left_s ? show(row.left_s, "seconds") : "–") : null,
    ),
  );
}

function fillBelow(below, source, id, view, board) {
  const typed = below.querySelector(".try")?.panel; // somebody may be writing there
  fill(
    below,
    view.time ? timeStrip(view.time) : null,
    familyPanel(view.family),
    view.notes.length ? el("section", { class: "part" }, el("h2", {}, t("run.notes")), view.notes.map((note) => el("p", {}, note))) : null,
    samplesPanel(view.samples, board),
    view.can_write && !source.isFile ? (typed ?? tryPanel(source, id)) : null,
    settingsPanel(view.config),
  );
}
