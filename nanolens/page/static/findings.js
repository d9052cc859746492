// What nanolens saw: each finding with its evidence, its place on the curve, and the change to make.

import { announce, button, el, fill } from "./dom.js";
import { t } from "./words.js";

export function findingsPanel(place, { findings, not_checked: notChecked, plan }, goTo) {
  fill(
    place,
    el("h2", {}, t("findings.title"), el("span", { class: "count" }, String(findings.length))),
    findings.length ? findings.map((finding, i) => card(finding, i === 0, goTo)) : el("p", { class: "note" }, t("findings.none")),
    plan.length ? el("section", { class: "held" }, el("h3", {}, t("findings.plan")), el("ul", {}, plan.map((each) => el("li", { class: each.verdict }, each.words)))) : null,
    notChecked.length ? unchecked(notChecked) : null,
  );
}

function card(finding, isOpen, goTo) {
  const { change } = finding;
  const body = [
    el("ul", { class: "evidence" }, finding.evidence.map((item) => el("li", {}, item.at_step === null || item.at_step === undefined ? item.words : [item.words, " ", place(item.at_step, goTo)]))),
    change ? el("div", { class: "change" }, el("p", {}, el("b", {}, t("finding.change")), " ", change.words), change.setting ? copyable(change.setting) : null, change.command ? copyable(change.command) : null) : null,
    el("p", { class: "note" }, t("finding.wrong_if", { what: finding.wrong_if })),
    el("p", { class: "code" }, finding.code),
  ];
  const look = finding.is_fault ? "fault" : finding.code === "healthy" ? "sound" : "aside";
  return el(
    "details",
    { class: `finding ${look} ${finding.sureness}`, open: isOpen || finding.is_fault, data: { code: finding.code } },
    el("summary", {}, el("span", { class: "sure" }, finding.how_sure), el("span", { class: "claim" }, finding.claim)),
    finding.at_step === null || finding.at_step === undefined ? null : el("p", { class: "jump" }, place(finding.at_step, goTo, t("finding.show"))),
    body,
  );
}

function place(step, goTo, words = t("where.step", { step })) {
  return button(words, () => goTo(step), { class: "link", data: { step } });
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
