// Runs in a file of their own: the text and pictures are in it already; this puts the page's own view in their place.

import { compareView } from "./compare.js";
import { el, fill } from "./dom.js";
import { topBar, useTheme, wireKeys } from "./frame.js";
import { runView } from "./run.js";
import { fileSource } from "./source.js";
import { learn } from "./words.js";

const data = JSON.parse(document.getElementById("data").textContent);
learn(data.lang, data.words);
useTheme();
const main = el("main", {});
const ids = Object.keys(data.runs);
let shown = null;

async function open() {
  const [, id] = location.hash.match(/^#\/run\/([\w-]+)$/) ?? [];
  shown?.close?.();
  shown = ids.length === 1 || ids.includes(id) ? await runView(main, fileSource(data), id ?? ids[0]) : await compareView(main, fileSource(data), ids);
}

fill(document.getElementById("app"), topBar([], { redraw: () => shown?.redraw() }), main, document.getElementById("signed"));
wireKeys(() => shown, {});
window.addEventListener("hashchange", open);
await open();
