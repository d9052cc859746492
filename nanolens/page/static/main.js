// The page over a running server: which view the address asks for.

import { here } from "./address.js";
import { compareView } from "./compare.js";
import { el, fill } from "./dom.js";
import { recall, remember, topBar, useTheme, wireKeys } from "./frame.js";
import { LogDoor, wireDoor } from "./log.js";
import { runView } from "./run.js";
import { runsView } from "./runs.js";
import { connection, server } from "./source.js";
import { learn, t } from "./words.js";

const app = document.getElementById("app");
let shown = null;
let door = null;
let turn = 0;
const RETRY_MS = 1500;
const banner = el("div", { class: "banner", role: "alert", hidden: true });

// The token has become a cookie: it need not stand in the address bar, in the history, or on a projector.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);
useTheme();
await speak(recall("lang") ?? "");
window.addEventListener("hashchange", () => go());
connection.tell = (isThere) => (isThere ? found() : lost());
wireDoor(() => door);
wireKeys(() => shown, { openLog: () => door.open() });
await go();

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
  fill(app, bar, banner, el("main", {}), door.dialog, door.cover);
}

/** The server has gone: what is shown stays, says how old it is, and heals when the server is back. */
function lost() {
  const since = new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  fill(banner, t("frame.lost", { since }));
  banner.hidden = false;
  document.documentElement.classList.add("lost");
  setTimeout(retry, RETRY_MS);
}

async function retry() {
  if (connection.isThere) return;
  await server.words(recall("lang") ?? "").catch(() => {});
  if (!connection.isThere) setTimeout(retry, RETRY_MS);
}

function found() {
  banner.hidden = true;
  document.documentElement.classList.remove("lost");
  go();
}

async function go() {
  const mine = (turn += 1);
  const { path } = here();
  const place = el("main", {}, el("p", { class: "skeleton", role: "status" }, t("frame.loading")));
  shown?.close?.();
  shown = null;
  app.querySelector("main").replaceWith(place);
  const [, kind, ids] = path.match(/^\/(run|compare)\/([\w,-]+)$/) ?? [];
  try {
    const view = kind === "run" ? await runView(place, server, ids) : kind === "compare" ? await compareView(place, server, ids.split(",")) : await runsView(place, server, () => door.open());
    if (mine !== turn) view.close?.();
    else {
      shown = view;
      document.title = view.title;
    }
  } catch (error) {
    document.title = `${t("frame.error")} – nanolens`;
    if (!connection.isThere) return fill(place, el("div", { class: "nothing" }, el("p", {}, t("frame.waiting"))));
    fill(place, el("div", { class: "nothing" }, el("p", {}, error.message), el("a", { href: "#/" }, t("runs.title"))));
    if (!error.faults) throw error;
  }
  return undefined;
}
