// What nanolens saw: each finding with its number on the curve, its evidence, and the change to make.

import { announce, button, el, fill } from "./dom.js";
import { t } from "./words.js";

/** The diagnosis in one sentence, the first of the page. `found` is not there yet while the server thinks. */
export function headline(found, showFinding, state) {
  if (!found) return el("p", { class: "headline skeleton" }, t("findings.waiting"));
  const faults = found.findings.filter((finding) => finding.is_fault);
  const [first] = faults.length ? faults : found.findings;
  if (!first) return el("p", { class: "headline" }, t("findings.none"));
  const isSound = first.code === "healthy" && isAlive(state);
  if (first.code === "healthy" && !isAlive(state)) return null; // how it ended stands above, and is what matters
  const number = found.findings.indexOf(first) + 1;
  const more = faults.length > 1 ? el("a", { href: "#", class: "more", on: { click: (event) => { event.preventDefault(); document.querySelector(".findings")?.scrollIntoView({ behavior: "smooth" }); } } }, t("findings.more", { count: faults.length - 1 })) : null;
  const place = hasPlace(first) ? button(t("finding.show"), () => showFinding(first, number), { class: "link" }) : null;
  return el("p", { class: `headline ${first.is_fault ? "fault" : isSound ? "sound" : ""} ${first.sureness}` }, el("span", {}, found.headline), " ", place, more);
}

export function isAlive(state) {
  return !["gone", "failed", "stopped", "silent"].includes(state);
}

export function findingsPanel(place, { findings, not_checked: notChecked, plan }, run, act) {
  const isNarrow = matchMedia("(max-width: 1100px)").matches;
  fill(
    place,
    el("h2", {}, t("findings.title"), el("span", { class: "count" }, String(findings.length))),
    findings.length ? findings.map((finding, i) => card(finding, i + 1, run, act, isNarrow)) : el("p", { class: "note" }, t("findings.none")),
    plan.length ? el("section", { class: "held" }, el("h3", {}, t("findings.plan")), el("ul", {}, plan.map((each) => el("li", { class: each.verdict }, each.words)))) : null,
    notChecked.length ? unchecked(notChecked) : null,
  );
}

/** From its pin on the curve. */
export function openFinding(place, number) {
  const found = place.querySelector(`[data-number="${number}"]`);
  if (!found) return;
  found.open = true;
  found.scrollIntoView({ block: "nearest", behavior: "smooth" });
  found.querySelector("summary").focus({ preventScroll: true });
}

function card(finding, number, run, act, isNarrow) {
  const { change } = finding;
  const body = [
    el("ul", { class: "evidence" }, finding.evidence.map((item) => el("li", {}, item.at_step === null || item.at_step === undefined ? item.words : [item.words, " ", stepLink(item.at_step, act.goTo)]))),
    change ? el("div", { class: "change" }, el("p", {}, el("b", {}, t("finding.change")), " ", change.words), change.setting ? copyable(change.setting) : null, change.command ? copyable(change.command) : null) : null,
    el("p", { class: "note" }, t("finding.wrong_if", { what: finding.wrong_if })),
    el("p", { class: "code" }, finding.code),
  ];
  const look = finding.is_fault ? "fault" : finding.code === "healthy" && isAlive(run.view.row.state) ? "sound" : "aside";
  return el(
    "details",
    { class: `finding ${look} ${finding.sureness}`, open: !isNarrow && (number === 1 || finding.is_fault), data: { code: finding.code, number } },
    el("summary", {}, el("span", { class: "sure" }, el("span", { class: "number" }, String(number)), " ", finding.how_sure), el("span", { class: "claim" }, finding.claim)),
    hasPlace(finding) ? el("p", { class: "jump" }, button(t("finding.show"), () => act.show(finding, number), { class: "link", data: { step: finding.from_step } })) : null,
    body,
  );
}

function hasPlace(finding) {
  return finding.from_step !== null && finding.from_step !== undefined;
}

function stepLink(step, goTo) {
  return button(t("where.step", { step }), () => goTo(step), { class: "link", tabindex: -1, data: { step } });
}

/** A command or a setting with a button that copies it. */
export function copyable(text) {
  const done = button(t("copy.copy"), async () => {
    await navigator.clipboard.writeText(text);
    done.textContent = t("copy.done");
    announce(t("copy.done"));
    setTimeout(() => { done.textContent = t("copy.copy"); }, 1500);
  }, { class: "copy" });
  return el("div", { class: "command" }, el("code", {}, text), done);
}

function unchecked(items) {
  const byReason = new Map();
  for (const { code, because } of items) byReason.set(because, [...(byReason.get(because) ?? []), code]);
  return el("details", { class: "unchecked" }, el("summary", {}, t("findings.unchecked", { count: items.length })), el("ul", {}, [...byReason].map(([because, codes]) => el("li", {}, because, el("span", { class: "code" }, codes.join(", "))))));
}
