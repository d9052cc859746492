// Where the page's data comes from: the server it was opened from, or (in a report) the file itself.

import { lang } from "./words.js";

class Mistake extends Error {
  constructor(faults) {
    super(faults.map((fault) => fault.what).join("; "));
    this.faults = faults;
  }
}

/** Whether the server answers; the page says so when it does not. `tell(isThere)` is called when that changes. */
export const connection = { isThere: true, tell: () => {} };

function heard(isThere) {
  if (connection.isThere === isThere) return;
  connection.isThere = isThere;
  connection.tell(isThere);
}

async function get(path) {
  try {
    const response = await fetch(path);
    heard(response.status !== 403); // another key: the server was started anew
    return response;
  } catch (error) {
    heard(false);
    throw error;
  }
}

async function ask(path, values = {}) {
  const query = new URLSearchParams({ ...values, lang: lang() });
  return answered(await get(`${path}?${query}`));
}

async function answered(response) {
  if (response.ok) return response.json();
  let faults = [{ what: `${response.status} ${response.statusText}` }];
  if ((response.headers.get("content-type") ?? "").includes("json")) faults = (await response.json()).faults ?? faults;
  throw new Mistake(faults);
}

const POST = { method: "POST", headers: { "X-Nanolens": "1" } };

export const server = {
  isFile: false,
  words: (language) => get(`/api/words?lang=${encodeURIComponent(language)}`).then(answered),
  /** Reads these first. */
  look: (ids) => ask("/api/look", { ids: ids.join(",") }),
  start: (id) => fetch(`/api/runs/${encodeURIComponent(id)}/start?lang=${lang()}`, POST).catch(() => {}),
  runs: () => ask("/api/runs").then((found) => found.runs),
  run: (id) => ask(`/api/runs/${encodeURIComponent(id)}`),
  series: (id, wanted) => ask(`/api/runs/${encodeURIComponent(id)}/series`, wanted),
  findings: (id) => ask(`/api/runs/${encodeURIComponent(id)}/findings`),
  forecast: (id) => ask(`/api/runs/${encodeURIComponent(id)}/forecast`),
  compare: (ids) => ask("/api/compare", { ids: ids.join(",") }),
  addLog: (text, name) => fetch(`/api/log?${new URLSearchParams({ name, lang: lang() })}`, { ...POST, body: text }).then(answered),
  reportAddress: (id) => `/api/runs/${encodeURIComponent(id)}/report?lang=${lang()}`,

  async write(id, wish, onText, signal) {
    const response = await fetch(`/api/runs/${encodeURIComponent(id)}/write?lang=${lang()}`, { ...POST, body: JSON.stringify(wish), signal });
    if (!response.ok) return answered(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return null;
      onText(value);
    }
  },

  /** News until `close` is called: onRow(id, row), and onTail(id, tail) for the runs that are watched. */
  listen({ watched = {}, wanted = {}, onRow, onTail }) {
    const watch = Object.entries(watched).map(([id, step]) => `${id}:${step}`).join(",");
    const stream = new EventSource(`/api/events?${new URLSearchParams({ ...wanted, watch })}`);
    stream.addEventListener("open", () => heard(true));
    stream.addEventListener("error", () => heard(false));
    stream.addEventListener("row", (event) => {
      const { id, row } = JSON.parse(event.data);
      onRow?.(id, row);
    });
    stream.addEventListener("tail", (event) => {
      const { id, tail } = JSON.parse(event.data);
      onTail?.(id, tail);
    });
    return stream;
  },
};

/** A report's own data: the same questions, answered from the file. Its curves are as fine as they were written into it. */
export function fileSource(data) {
  const placed = (places, step) => interpolate(places.step, places.x, step);
  return {
    isFile: true,
    runs: async () => Object.entries(data.runs).map(([id, run]) => ({ ...run.view.row, id })),
    run: async (id) => data.runs[id].view,
    findings: async (id) => data.runs[id].findings,
    forecast: async (id) => data.runs[id].forecast,
    compare: async () => data.comparison,
    async series(id, { x = "step", smooth = 0 }) {
      const run = data.runs[id];
      const axis = run.view.axes.includes(x) ? x : "step";
      const places = run.places[axis];
      const series = {};
      for (const [name, found] of Object.entries(run.series)) {
        const key = name.startsWith("smoothed_") ? (name === `smoothed_${smooth}` ? "smoothed" : null) : name;
        if (key) series[key] = { ...found, x: axis === "step" ? found.step : found.step.map((step) => placed(places, step)) };
      }
      return { ...run.rest, axis, axes: run.view.axes, lines: run.view.lines, series, places, smooth: Number(smooth) };
    },
    listen: () => ({ close() {} }),
  };
}

/** y at `x` on the straight lines between the points; beyond them, on with the mean slope. */
export function interpolate(xs, ys, x) {
  const last = xs.length - 1;
  if (last < 0) return x;
  if (last === 0) return xs[0] ? (ys[0] * x) / xs[0] : ys[0];
  if (x > xs[last]) return ys[last] + ((x - xs[last]) * (ys[last] - ys[0])) / (xs[last] - xs[0]);
  if (x < xs[0]) return Math.max(0, ys[0] - ((xs[0] - x) * (ys[last] - ys[0])) / (xs[last] - xs[0]));
  const right = Math.max(1, firstAtLeast(xs, x));
  const part = (x - xs[right - 1]) / (xs[right] - xs[right - 1] || 1);
  return ys[right - 1] + part * (ys[right] - ys[right - 1]);
}

/** Index of the first item that is x or more. */
export function firstAtLeast(xs, x) {
  let low = 0;
  let high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}
