// What is around every view: the bar at the top, light and dark, languages, keys.

import { button, el, fill } from "./dom.js";
import { lang, t } from "./words.js";

const NAMES = { en: "English", hi: "हिन्दी" };

export function recall(key) {
  try {
    return localStorage.getItem(`nanolens-${key}`);
  } catch {
    return null; // a browser that keeps nothing
  }
}

export function remember(key, value) {
  try {
    localStorage.setItem(`nanolens-${key}`, value);
  } catch {
    // as above: the choice holds until the page is closed
  }
}

export function useTheme(theme) {
  const dark = theme ?? recall("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.theme = dark;
  if (theme) remember("theme", theme);
}

/** `act`: language(code), redraw(), openLog(); what a report has no use for is left out. */
export function topBar(languages, act) {
  const theme = button("", () => {
    useTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    act.redraw();
    name();
  }, { class: "quiet", data: { act: "theme" } });
  const name = () => { theme.textContent = document.documentElement.dataset.theme === "dark" ? t("theme.light") : t("theme.dark"); };
  name();
  return el(
    "nav",
    { class: "top", "aria-label": t("frame.nav") },
    el("a", { class: "brand", href: "#/" }, el("span", { class: "mark", "aria-hidden": "true" }), "nanolens"),
    act.openLog ? el("a", { href: "#/" }, t("runs.title")) : null,
    act.reports ?? null,
    act.openLog ? button(t("log.open"), act.openLog, { class: "quiet", data: { act: "log" } }) : null,
    el("span", { class: "space" }),
    act.language ? languages.filter((code) => code !== lang()).map((code) => button(NAMES[code] ?? code, () => act.language(code), { class: "quiet", lang: code, data: { act: `lang-${code}` } })) : null,
    theme,
    button("?", help, { class: "quiet", "aria-label": t("keys.title"), data: { act: "help" } }),
  );
}

const KEYS = [["/", "keys.search"], ["1 – 4", "keys.axis"], ["l", "keys.log"], ["+  −", "keys.zoom"], ["⇧ ←  →", "keys.pan"], ["←  →", "keys.step"], ["0", "keys.reset"], ["t", "keys.theme"], ["o", "keys.open"], ["?", "keys.title"]];

function help() {
  const dialog = el("dialog", { class: "keys", "aria-label": t("keys.title") });
  fill(dialog, el("h2", {}, t("keys.title")), el("dl", {}, KEYS.map(([key, words]) => el("div", { class: "row" }, el("dt", {}, el("kbd", {}, key)), el("dd", {}, t(words))))), button(t("log.close"), () => dialog.close(), { class: "pick" }));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** A box that is ticked or a slider needs no letters: the keys go on working there. */
function isTyping(target) {
  return Boolean(target.closest?.("textarea, select, input:not([type=checkbox], [type=range], [type=radio])"));
}

/** Keys that work anywhere but in a field. `now()` is the view that is shown. */
export function wireKeys(now, act) {
  window.addEventListener("keydown", (event) => {
    if (isTyping(event.target) || event.target.closest?.("dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
    const board = now()?.board;
    const axis = ["step", "tokens", "flops", "time"][Number(event.key) - 1];
    if (event.key === "/") document.querySelector("[data-shortcut='/']")?.focus();
    else if (event.key === "?") help();
    else if (event.key === "t") document.querySelector("[data-act=theme]").click();
    else if (event.key === "o" && act.openLog) act.openLog();
    else if (board && axis) board.bar.querySelector(`[data-pick=axis-${axis}]`)?.click();
    else if (board && event.key === "l") board.bar.querySelector("[data-pick=log-y]").click();
    else if (board && (event.key === "+" || event.key === "=")) board.scale(0.5);
    else if (board && event.key === "-") board.scale(2);
    else if (board && event.key === "0") board.reset();
    else return;
    event.preventDefault();
  });
}
