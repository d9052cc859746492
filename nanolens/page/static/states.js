// What a run is doing, as a dot and a word.

import { el } from "./dom.js";
import { t } from "./words.js";

const LOOKS = { running: "good live", starting: "good", finished: "done", stopped: "warn", failed: "bad", gone: "bad", silent: "warn", unreadable: "bad", log: "done" };

export function stateMark(state) {
  return el("span", { class: `state ${LOOKS[state] ?? ""}`, data: { state } }, el("i", { "aria-hidden": "true" }), t(`state.${state}`));
}

/** Whether somebody should look at it. */
export function isFaulty(row) {
  return ["failed", "gone", "silent", "unreadable"].includes(row.state) || (row.faults ?? 0) > 0 || row.is_bad === true;
}
