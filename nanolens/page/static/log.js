// A log of any trainer, dropped, pasted or chosen: it is read in the server's memory and stays nowhere.

import { button, el, fill } from "./dom.js";
import { t } from "./words.js";

export class LogDoor {
  constructor(source) {
    this.source = source;
    this.text = el("textarea", { rows: 12, placeholder: t("log.paste"), "aria-label": t("log.paste"), spellcheck: "false" });
    this.file = el("input", { type: "file", multiple: true, "aria-label": t("log.file"), on: { change: () => this.take([...this.file.files]) } });
    this.trouble = el("p", { class: "trouble", role: "alert" });
    this.dialog = el("dialog", { class: "log", "aria-label": t("log.title") });
    this.cover = el("div", { class: "cover", hidden: true }, el("p", {}, t("log.drop")));
    fill(
      this.dialog,
      el("h2", {}, t("log.title")),
      el("p", { class: "note" }, t("log.says")),
      this.text,
      this.file,
      this.trouble,
      el("div", { class: "tools" }, button(t("log.read"), () => this.read(this.text.value, ""), { class: "main" }), button(t("log.close"), () => this.dialog.close(), { class: "pick" })),
    );
  }

  open() {
    this.trouble.textContent = "";
    this.dialog.showModal();
  }

  async take(files) {
    await this.read(files, "");
  }

  /** `body`: a text or files, each sent as it is; several runs are compared. */
  async read(body, name) {
    const parts = (Array.isArray(body) ? body : [body]).filter((part) => part && part.size !== 0);
    if (!parts.length) return;
    this.trouble.textContent = "";
    this.cover.firstChild.textContent = t("log.reading");
    this.cover.hidden = false;
    try {
      const ids = [];
      for (const part of parts) ids.push(...(await this.source.addLog(part, part.name || name || t("log.name"))).ids);
      this.dialog.close();
      this.text.value = "";
      location.hash = ids.length > 1 ? `#/compare/${ids.slice(0, 10).join(",")}` : `#/run/${ids[0]}`;
    } catch (error) {
      if (!this.dialog.open) this.open();
      const [fault] = error.faults ?? [];
      this.trouble.textContent = fault ? [fault.what, fault.fix].filter(Boolean).join(": ") : error.message;
    } finally {
      this.cover.hidden = true;
      this.cover.firstChild.textContent = t("log.drop");
    }
  }
}

/** What is dropped or pasted anywhere on the page goes to the door of the moment. */
export function wireDoor(door) {
  window.addEventListener("dragover", (event) => {
    event.preventDefault();
    door().cover.hidden = false;
  });
  window.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) door().cover.hidden = true;
  });
  window.addEventListener("drop", (event) => {
    event.preventDefault();
    door().cover.hidden = true;
    const files = [...event.dataTransfer.files];
    if (files.length) door().take(files);
    else door().read(event.dataTransfer.getData("text/plain"), "");
  });
  window.addEventListener("paste", (event) => {
    if (event.target.closest?.("input, textarea")) return;
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (text.includes("\n")) door().read(text, "");
  });
}
