// A run in a file of its own: the same view, with its data beside it.

import { el, fill } from "./dom.js";
import { topBar, useTheme, wireKeys } from "./frame.js";
import { runView } from "./run.js";
import { fileSource } from "./source.js";
import { learn } from "./words.js";

const data = JSON.parse(document.getElementById("data").textContent);
learn(data.lang, data.words);
useTheme();
const main = el("main", {});
let shown = null;
fill(document.getElementById("app"), topBar([], { redraw: () => shown?.redraw() }), main);
wireKeys(() => shown, {});
shown = await runView(main, fileSource(data), "run");
