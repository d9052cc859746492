// The page over a running server: which view the address asks for.

import { plotlyReady } from "./chart.js";
import { compareView } from "./compare.js";
import { el, fill } from "./dom.js";
import { recall, remember, topBar, useTheme, wireKeys } from "./frame.js";
import { LogDoor, wireDoor } from "./log.js";
import { runView } from "./run.js";
import { runsView } from "./runs.js";
import { server } from "./source.js";
import { learn, t } from "./words.js";

const app = document.getElementById("app");
let shown = null;
let door = null;
let turn = 0;

// The token has become a cookie: it need not stand in the address bar, in the history, or on a projector.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);
useTheme();
await speak(recall("lang") ?? "");
window.addEventListener("hashchange", () => go());
wireDoor(() => door);
wireKeys(() => shown, { openLog: () => door.open() });
await go();
plotlyReady(); // for the charts that are looked at next

async function speak(language) {
  const found = await server.words(language);
  learn(found.lang, found.words);
  door = new LogDoor(server);
  const bar = topBar(found.languages, {
    openLog: () => door.open(),
    redraw: () => shown?.redraw?.(),
    language: async (code) => {
      remember("lang", code);
      await speak(code);
      await go();
    },
  });
  fill(app, bar, el("main", {}), door.dialog, door.cover);
}

async function go() {
  const mine = (turn += 1);
  const place = el("main", {}, el("p", { class: "loading", "aria-hidden": "true" }, "· · ·"));
  shown?.close?.();
  shown = null;
  app.querySelector("main").replaceWith(place);
  const [, kind, ids] = location.hash.match(/^#\/(run|compare)\/([\w,-]+)$/) ?? [];
  try {
    const view = kind === "run" ? await runView(place, server, ids) : kind === "compare" ? await compareView(place, server, ids.split(",")) : await runsView(place, server, () => door.open());
    if (mine !== turn) view.close?.();
    else {
      shown = view;
      document.title = `${view.title} – nanolens`;
    }
  } catch (error) {
    fill(place, el("div", { class: "nothing" }, el("p", {}, error.message), el("a", { href: "#/" }, t("runs.title"))));
    if (!error.faults) throw error;
  }
}
