// Which charts a board has, and what each draws of the runs on it. One run is drawn with everything that is known of it; several are
// drawn over one another, a colour each.

import { colour } from "./chart.js";
import { t } from "./words.js";

export const PARTS = ["compile", "data", "train", "eval", "checkpoint", "sample", "other"];

/** The panels that at least one run has something for. */
export function panelsFor(runs) {
  const has = (name) => runs.some((run) => run.series?.series[name]);
  const found = [{ key: "loss", title: t("panel.loss"), draw: loss, tall: true, followsLog: true, kind: "nats", unit: t("unit.nats") }];
  const plain = [
    ["lr", "rate", {}],
    ["grad_norm", "number", { logY: true }],
    ["clipped", "share", { fromZero: true }],
    ["tokens_per_s", "tokens_per_s", { fromZero: true }],
    ["mfu", "share", { fromZero: true }],
    ["memory", "bytes", { fromZero: true }],
  ];
  for (const [key, kind, about] of plain) if (has(key)) found.push({ key, title: t(`panel.${key}`), kind, draw: (all, board) => column(all, board, key, kind), ...about });
  if (runs.length === 1 && runs[0].view.time) found.push({ key: "time", title: t("panel.time"), kind: "seconds", draw: time, fromZero: true });
  return found;
}

// --- the loss

function loss(runs, board) {
  return runs.length === 1 ? lossOfOne(runs[0], board) : lossOfSeveral(runs, board);
}

function lossOfOne(run, board) {
  const { series, view, forecast } = run;
  const found = series.series;
  const lines = [];
  const bands = [];
  const at = (step) => board.place(run, step);
  if (found.loss) {
    const isFaint = Boolean(found.smoothed);
    lines.push({ key: "loss", name: t("series.loss"), kind: "nats", colour: colour("batch"), width: isFaint ? 0.9 : 1.3, opacity: isFaint ? 0.5 : 1, ...found.loss, rest: last(found.loss.y) });
  }
  if (found.smoothed) lines.push({ key: "smoothed", name: t("series.smoothed", { window: series.smooth }), says: t("smooth.says", { window: series.smooth }), kind: "nats", colour: colour("batch"), width: 1.9, ...found.smoothed });
  const evals = series.evals;
  const x = evals.step.map(at);
  for (const split of ["train", "val"]) {
    if (!evals[split].some((y) => y !== null)) continue;
    const error = evals[`${split}_se`];
    if (split === "val" && error.some((each) => each !== null)) {
      bands.push({ key: split, x, low: evals[split].map((y, i) => y - 2 * (error[i] ?? 0)), high: evals[split].map((y, i) => y + 2 * (error[i] ?? 0)), colour: colour("val-band"), isFitted: true });
    }
    lines.push({ key: split, name: t(`series.${split}`), says: split === "val" ? t("series.val.says") : undefined, kind: "nats", colour: colour(split), x, y: evals[split], joins: true, mode: x.length > 80 ? "lines" : "lines+markers", width: 1.6, size: 5, rest: last(evals[split]) });
  }
  addExpectations(view, forecast, board, at, lines, bands);
  return {
    lines, bands,
    levels: view.lines.map((level) => ({ ...level, colour: colour(level.key === "chance" ? "faint" : "level") })),
    marks: marksOf(run, at),
    pins: pinsOf(run, at),
    areas: areasOf(series.not_finite, at, board),
    note: found.smoothed ? t("smooth.says", { window: series.smooth }) : "",
    summary: summaryOf(evals),
  };
}

function addExpectations(view, forecast, board, at, lines, bands) {
  const { reference, expected } = view;
  if (reference) lines.push({ key: "reference", name: reference.name, says: reference.source, kind: "nats", colour: colour("reference"), x: reference.step.map(at), y: reference.y, mode: "lines+markers", dash: "2 3", size: 6, isAside: true });
  if (expected) {
    const x = expected.step.map(at);
    lines.push({ key: "expected", name: t("series.expected"), says: expected.label, kind: "nats", colour: colour("expected"), x, y: expected.y, dash: "6 4", mode: x.length > 1 ? "lines" : "markers", isOpen: true, size: 8, isAside: true });
    bands.push({ key: "expected", x, low: expected.low, high: expected.high, colour: colour("expected-band") });
  }
  if (forecast?.step && board.forecasts) {
    const x = forecast.step.map(at);
    lines.push({ key: "forecast", name: t("series.forecast"), says: forecast.words, kind: "nats", colour: colour("forecast"), x, y: forecast.y, dash: "2 3", width: 1.8 });
    bands.push({ key: "forecast", x, low: forecast.low, high: forecast.high, colour: colour("forecast-band") });
  }
}

function lossOfSeveral(runs, board) {
  const lines = [];
  for (const run of runs) {
    const found = run.series.series.smoothed ?? run.series.series.loss;
    const { step, val } = run.series.evals;
    const hasVal = val.some((y) => y !== null);
    const about = { key: run.id, group: run.id, name: run.name, kind: "nats", colour: run.colour, dash: run.dash };
    if (found) lines.push({ ...about, name: hasVal ? `${run.name} · ${t("series.loss")}` : run.name, width: hasVal ? 0.9 : 1.4, opacity: hasVal ? 0.55 : 0.9, ...found });
    if (hasVal) lines.push({ ...about, x: step.map((each) => board.place(run, each)), y: val, joins: true, mode: step.length > 40 ? "lines" : "lines+markers", width: 1.7, size: 4.5 });
  }
  const areas = runs.flatMap((run) => areasOf(run.series.not_finite, (step) => board.place(run, step), board));
  return { lines, areas, levels: sharedLevels(runs), note: runs.some((run) => run.series.series.smoothed) ? t("smooth.says_all", { window: board.smooth }) : "" };
}

/** Levels that all runs have: those of one corpus. */
function sharedLevels(runs) {
  const [first, ...rest] = runs.map((run) => run.view.lines);
  return first.filter((level) => rest.every((lines) => lines.some((other) => other.key === level.key && Math.abs(other.y - level.y) < 1e-6))).map((level) => ({ ...level, colour: colour("level") }));
}

// --- events on the curve

const MARKS = {
  eval: { shape: "tick", colour: "eval" },
  checkpoint: { shape: "triangle", rise: 6, colour: "checkpoint" },
  compile: { shape: "square", colour: "compile" },
  resume: { shape: "line", colour: "ink" },
  trouble: { shape: "cross", isTop: true, colour: "bad" },
};
const KINDS = { checkpoint: "checkpoint", compile: "compile", resume: "resume", attempt: "resume", skip: "trouble", rollback: "trouble", out_of_memory: "trouble", error: "trouble", checkpoint_failed: "trouble", micro_batch_halved: "trouble", rank_drifted: "trouble" };

function marksOf(run, at) {
  const places = { eval: run.series.evals.step.map((step) => [step, ""]) };
  for (const mark of run.view.marks) {
    const kind = KINDS[mark.kind];
    if (kind) (places[kind] ??= []).push([mark.step, mark.text || t(`mark.${mark.kind}`)]);
  }
  return Object.entries(places)
    .filter(([, found]) => found.length)
    .map(([kind, found]) => ({
      key: `mark-${kind}`, name: t(`mark.${kind}`), kind: "text", ...MARKS[kind],
      colour: colour(MARKS[kind].colour), x: found.map(([step]) => at(step)), texts: found.map(([, text]) => text.slice(0, 60) || "●"),
    }));
}

/** Findings with a place on the curve, by their numbers in the list beside it. */
function pinsOf(run, at) {
  return (run.findings ?? [])
    .map((finding, i) => ({ ...finding, number: i + 1 }))
    .filter((finding) => finding.from_step !== null && finding.from_step !== undefined)
    .map((finding) => ({
      number: finding.number, says: finding.claim, at: at(finding.from_step), from: at(finding.from_step), to: at(finding.to_step),
      colour: colour(finding.is_fault ? (finding.sureness === "certain" ? "bad" : "warn") : finding.code === "healthy" ? "good" : "soft"),
      isShaded: finding.is_fault, isShown: run.shownFinding === finding.number,
    }));
}

function areasOf(stretches, at) {
  return (stretches ?? []).map((piece) => ({ from: at(piece.from - 0.5), to: at(piece.to + 0.5), label: piece.is === "inf" ? "inf" : "NaN", colour: colour("bad") }));
}

// --- one column of the record

function column(runs, board, key, kind) {
  const isOne = runs.length === 1;
  const lines = runs.filter((run) => run.series.series[key]).map((run) => ({ key: run.id, name: isOne ? t(`panel.${key}`) : run.name, kind, gap: "", colour: isOne ? colour("batch") : run.colour, dash: run.dash, group: run.id, width: 1.2, opacity: isOne ? 1 : 0.8, ...run.series.series[key], rest: isOne ? undefined : "" }));
  const levels = [];
  if (key === "grad_norm" && isOne) {
    const clip = Number(board.setting(runs[0], "grad_clip"));
    if (clip > 0) levels.push({ key: "clip", y: clip, label: t("level.clip"), colour: colour("level") });
  }
  const notes = { clipped: t("note.clipped"), mfu: t("note.mfu") };
  return { lines, levels, note: isOne ? (notes[key] ?? "") : "" };
}

// --- where the time goes

function time(runs, board) {
  const [run] = runs;
  const { start, ends, parts } = run.view.time;
  const edges = [start, ...ends].map((step) => board.place(run, step));
  const x = ends.map((_, i) => (edges[i] + edges[i + 1]) / 2);
  const width = ends.map((_, i) => Math.max(1e-12, edges[i + 1] - edges[i]) * 0.92);
  const bars = parts.map((part) => ({ key: part.key, name: part.name, kind: "seconds", colour: colour(part.key), x, y: part.seconds, width, isRange: true, rest: `${Math.round(part.share * 100)}%` }));
  return { bars, note: t("note.time") };
}

function summaryOf(evals) {
  const known = evals.val.map((y, i) => [evals.step[i], y]).filter(([, y]) => y !== null);
  if (!known.length) return "";
  const best = known.reduce((least, each) => (each[1] < least[1] ? each : least));
  const [step, val] = known[known.length - 1];
  return t("chart.summary", { best: best[1], at: best[0], val, step });
}

function last(ys) {
  for (let i = ys.length - 1; i >= 0; i -= 1) if (ys[i] !== null) return ys[i].toFixed(4);
  return "";
}
