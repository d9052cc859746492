// Where an axis has its ticks, and what they say.

import { show } from "./words.js";

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];

/** Round values from low to high, at most about `most` of them; `least` is the smallest step, 1 where only whole numbers mean something. */
export function linearTicks(low, high, most, least = 0) {
  const rough = (high - low) / Math.max(1, most);
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, size * ([1, 2, 5].find((each) => each * size >= rough * 0.999) ?? 10));
  return stepped(low, high, step);
}

export function timeTicks(low, high, most) {
  const step = TIME_STEPS.find((each) => (high - low) / each <= most) ?? 86400 * Math.ceil((high - low) / 86400 / most);
  return high - low < 2 ? linearTicks(low, high, most) : stepped(low, high, step);
}

function stepped(low, high, step) {
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

/** Decades, with 2 and 5 or round values between them where there are few: never fewer than three if there is room for them. */
export function logTicks(low, high, most) {
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  for (const parts of [[1], [1, 2, 5]]) {
    const found = [];
    const every = parts.length === 1 ? Math.max(1, Math.ceil((to - from) / most)) : 1;
    for (let power = from; power <= to; power += every) found.push(...parts.map((part) => Number((part * 10 ** power).toPrecision(12))));
    const seen = found.filter((value) => value >= low * 0.999999 && value <= high * 1.000001);
    if (seen.length >= 3) return seen.length <= 2 * most ? seen : seen.filter((_, i) => i % 2 === 0);
  }
  return linearTicks(low, high, most).filter((value) => value > 0);
}

/** A value on an axis; `step` is the distance between two ticks. */
export function tickText(value, kind, step) {
  if (kind === "seconds") return clock(value, step);
  if (kind === "rate") return show(value, "rate");
  if (kind === "share") return `${Number((value * 100).toFixed(step < 0.01 ? 1 : 0))}%`;
  if (kind === "bytes" || kind === "flops") return value === 0 ? "0" : show(value, kind).replace(/\.0+(?= )|(?<=\.\d*?)0+(?= )/, "").replace(/\.(?= )/, "");
  if (kind === "count") return show(value, "count");
  if (Math.abs(value) >= 1e6 || kind === "tokens") return short(value);
  if (Math.abs(value) >= 1000) return show(value, "count");
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(Math.max(step, 1e-12)) + 1e-9)));
  return digits > 4 ? show(value, "about") : value.toFixed(digits);
}

function short(value) {
  const [size, unit] = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]].find(([least]) => Math.abs(value) >= least) ?? [1, ""];
  return `${Number((value / size).toPrecision(4))}${unit}`;
}

function clock(value, step) {
  const two = (number) => String(Math.round(number)).padStart(2, "0");
  if (value === 0) return "0";
  if (step >= 86400) return `${value / 86400} d`;
  if (value >= 3600 && step < 3600) return `${Math.floor(value / 3600)}:${two((value % 3600) / 60)} h`;
  if (step >= 3600) return `${value / 3600} h`;
  if (step >= 60) return `${value / 60} min`;
  if (value >= 60) return `${Math.floor(value / 60)}:${two(value % 60)} min`;
  return `${Number(value.toPrecision(4))} s`;
}
