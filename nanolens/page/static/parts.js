// Parts of a run's page that are no curves: where the time went in all, samples, settings.

import { el, fill } from "./dom.js";
import { show, t } from "./words.js";

/** All seconds of the run as one strip. */
export function timeStrip(time) {
  const parts = time.parts.filter((part) => part.share >= 0.001);
  return el(
    "section",
    { class: "part time" },
    el("h2", {}, t("part.time")),
    el("div", { class: "strip", role: "img", "aria-label": parts.map((part) => `${part.name} ${show(part.share, "share")}`).join(", ") }, parts.map((part) => el("span", { style: { width: `${part.share * 100}%`, background: `var(--${part.key})` }, title: `${part.name} ${show(part.total_s, "seconds")}` }))),
    el("ul", { class: "keys" }, parts.map((part) => el("li", {}, el("span", { class: "swatch", style: { "--colour": `var(--${part.key})` } }), part.name, " ", el("b", {}, show(part.share, "share")), " ", el("small", {}, show(part.total_s, "seconds"))))),
  );
}

/** Where a run comes from, and what came from it. */
export function familyPanel(family) {
  const members = Object.entries(family ?? {}).filter(([, found]) => found.length);
  if (!members.length) return null;
  const one = (each) => el("li", {}, each.id ? el("a", { href: `#/run/${each.id}` }, each.name) : el("span", {}, each.name), each.words ? [" ", el("small", {}, each.words)] : null);
  return el("section", { class: "part family" }, el("h2", {}, t("family.title")), members.map(([key, found]) => el("div", {}, el("h3", {}, t(`family.${key}`)), el("ul", {}, found.map(one)))));
}

/** The slider is the crosshair: both stand at the same step. */
export function samplesPanel(samples, board) {
  if (!samples.length) return null;
  const text = el("pre", { class: "sample" });
  const label = el("output", {});
  const slide = el("input", { type: "range", min: 0, max: samples.length - 1, value: samples.length - 1, "aria-label": t("samples.slide") });
  const choose = () => {
    const sample = samples[Number(slide.value)];
    text.textContent = sample.text;
    label.textContent = t("where.step", { step: sample.step });
  };
  slide.addEventListener("input", () => {
    choose();
    const [run] = board.runs;
    if (run) board.point(board.place(run, samples[Number(slide.value)].step));
  });
  choose();
  return el("section", { class: "part samples" }, el("h2", {}, t("samples.title")), samples.length > 1 ? el("div", { class: "slide" }, slide, label) : label, text);
}

/** Settings by group; the meaning of each is its tooltip, and stands below it for readers without a pointer. */
export function settingsPanel(groups) {
  if (!groups.length) return null;
  const list = el("div", { class: "groups" });
  const find = el("input", { type: "search", placeholder: t("settings.find"), "aria-label": t("settings.find") });
  const showMeaning = el("input", { type: "checkbox" });
  const draw = () => {
    const word = find.value.toLowerCase();
    fill(
      list,
      groups.map(({ group, rows }) => {
        const found = rows.filter((row) => `${row.key} ${row.value} ${row.meaning}`.toLowerCase().includes(word));
        return found.length ? el("section", {}, el("h3", {}, group), el("dl", {}, found.map((row) => settingRow(row, showMeaning.checked)))) : null;
      }),
    );
  };
  find.addEventListener("input", draw);
  showMeaning.addEventListener("change", draw);
  draw();
  return el("section", { class: "part settings" }, el("h2", {}, t("settings.title")), el("div", { class: "tools" }, find, el("label", {}, showMeaning, " ", t("settings.meanings")), el("span", { class: "note" }, t("settings.bold"))), list);
}

function settingRow(row, isLong) {
  const isOther = row.usual !== "" && row.usual !== row.value;
  const tip = [row.meaning, row.usual ? t("settings.usual", { value: row.usual }) : "", row.where ? t("settings.where", { where: row.where }) : ""].filter(Boolean).join("\n");
  return el("div", { class: isOther ? "row other" : "row", title: tip }, el("dt", {}, row.key), el("dd", {}, row.value), isLong && row.meaning ? el("p", { class: "note" }, row.meaning) : null);
}
