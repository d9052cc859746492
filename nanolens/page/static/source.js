// Where the page's data comes from: the server it was opened from, or (in a report) the file itself.

import { lang } from "./words.js";

class Mistake extends Error {
  constructor(faults) {
    super(faults.map((fault) => fault.what).join("; "));
    this.faults = faults;
  }
}

async function ask(path, values = {}) {
  const query = new URLSearchParams({ ...values, lang: lang() });
  return answered(await fetch(`${path}?${query}`));
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
  words: (language) => fetch(`/api/words?lang=${encodeURIComponent(language)}`).then(answered),
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
  const between = (places, step) => interpolate(places.step, places.x, step);
  return {
    isFile: true,
    run: async () => data.run,
    findings: async () => data.findings,
    forecast: async () => data.forecast,
    async series(id, { x = "step", smooth = 0 }) {
      const axis = data.run.axes.includes(x) ? x : "step";
      const places = data.places[axis];
      const series = {};
      for (const [name, found] of Object.entries(data.series)) {
        const key = name.startsWith("smoothed_") ? (name === `smoothed_${smooth}` ? "smoothed" : null) : name;
        if (key) series[key] = { ...found, x: axis === "step" ? found.step : found.step.map((step) => between(places, step)) };
      }
      return { ...data.rest, axis, axes: data.run.axes, series, places, smooth: Number(smooth) };
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
