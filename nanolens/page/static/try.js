// A prompt, and the model's answer as it is written.

import { button, el } from "./dom.js";
import { t } from "./words.js";

export function tryPanel(source, id) {
  const prompt = el("textarea", { rows: 3, placeholder: t("try.prompt"), "aria-label": t("try.prompt"), maxlength: 20000 });
  const count = numberInput(t("try.tokens"), 200, 1, 4000, 50);
  const heat = numberInput(t("try.temperature"), 0.8, 0, 2, 0.1);
  const top = numberInput(t("try.top_k"), 200, 0, 100000, 10);
  const seed = numberInput(t("try.seed"), 1337, 0, 2 ** 31, 1);
  const answer = el("pre", { class: "sample", "aria-live": "polite", hidden: true });
  const waiting = el("p", { class: "note", role: "status", hidden: true }, t("try.loading"));
  let stopping = null;
  const go = button(t("try.write"), write, { class: "main" });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) write();
  });

  prompt.addEventListener("focus", () => source.start(id), { once: true }); // the model is loaded while somebody types

  async function write() {
    if (stopping) {
      stopping.abort();
      return;
    }
    stopping = new AbortController();
    go.textContent = t("try.stop");
    answer.hidden = false;
    answer.classList.add("writing");
    answer.textContent = prompt.value;
    waiting.hidden = false;
    const wish = { prompt: prompt.value || "\n", max_new_tokens: count.number(), temperature: heat.number(), top_k: top.number(), seed: seed.number() };
    try {
      await source.write(id, wish, (text) => { waiting.hidden = true; answer.append(text); }, stopping.signal);
    } catch (error) {
      if (error.name !== "AbortError") answer.append(`\n${error.message}`);
    }
    stopping = null;
    waiting.hidden = true;
    answer.classList.remove("writing");
    go.textContent = t("try.write");
  }

  const panel = el("section", { class: "part try" }, el("h2", {}, t("try.title")), prompt, el("div", { class: "tools" }, count.element, heat.element, top.element, seed.element, go), waiting, answer);
  panel.panel = panel;
  return panel;
}

function numberInput(label, value, min, max, step) {
  const input = el("input", { type: "number", value, min, max, step });
  const number = () => Math.min(max, Math.max(min, Number.isFinite(input.valueAsNumber) ? input.valueAsNumber : value));
  return { element: el("label", {}, label, " ", input), number };
}
