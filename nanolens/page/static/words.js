// Sentences and numbers. The sentences come from the server in the reader's language; the forms of the numbers are those of
// nanolens/show/words.py, and a test holds the two against each other.

let sentences = {};
let language = "en";

export function learn(lang, words) {
  language = lang;
  sentences = words;
  document.documentElement.lang = lang;
}

export function lang() {
  return language;
}

/** The sentence of that key with its values: "step {step:count}" becomes "step 1,250". */
export function t(key, values = {}) {
  const sentence = sentences[key] ?? key;
  return sentence.replace(/\{(\w+)(?::(\w+)(?: ([^|}]*)\|([^}]*))?)?\}/g, (_, name, kind, one, many) => {
    const shown = show(values[name], kind ?? "text");
    return one === undefined ? shown : `${shown} ${values[name] === 1 ? one : many}`;
  });
}

export function show(value, kind = "number") {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value === "nan" ? "NaN" : value;
  if (Array.isArray(value)) return value.map((each) => show(each, kind)).join(", ");
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "inf" : "-inf";
  return (FORMS[kind] ?? String)(value);
}

const commas = (value, digits = 0) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** Significant digits without an exponent for 0.001 to 1e15. */
function significant(value, digits, keepZeros = false) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e15) return scientific(value, digits);
  let shown = value.toPrecision(digits);
  if (shown.includes("e")) return commas(Number(shown));
  if (!keepZeros && shown.includes(".")) shown = shown.replace(/\.?0+$/, "");
  if (size < 1000) return shown;
  const [whole, rest] = shown.split(".");
  return commas(Number(whole)) + (rest ? "." + rest : "");
}

function scientific(value, digits) {
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  return (mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa) + "e" + Number(exponent);
}

function scaled(value, steps, digits = 3, keepZeros = true) {
  const [size, unit] = steps.find(([least]) => Math.abs(value) >= least) ?? steps[steps.length - 1];
  return significant(value / size, digits, keepZeros) + unit;
}

function seconds(value) {
  const size = Math.abs(value);
  const two = (number) => String(number).padStart(2, "0");
  if (size >= 48 * 3600) return (value / 86400).toFixed(1) + " days";
  if (size >= 3600) {
    const minutes = Math.round(value / 60);
    return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  }
  if (size >= 120) {
    const whole = Math.round(value);
    return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  }
  if (size >= 1 || value === 0) return significant(value, 3, true) + " s";
  if (size >= 1e-3) return significant(value * 1e3, 3, true) + " ms";
  return significant(value * 1e6, 3) + " µs";
}

function share(value) {
  const percent = value * 100;
  if (Math.abs(percent - Math.round(percent)) < 1e-9 * Math.max(1, Math.abs(percent))) return commas(Math.round(percent)) + "%";
  if (Math.abs(percent) >= 0.95) return commas(percent, 1) + "%";
  return significant(percent, 2) + "%";
}

const SI = [[1e12, "T"], [1e9, "B"], [1e6, "M"]];
const FLOPS = [[1e18, " EFLOP"], [1e15, " PFLOP"], [1e12, " TFLOP"], [1e9, " GFLOP"], [1e6, " MFLOP"], [1e3, " kFLOP"], [1, " FLOP"]];
const BYTES = [[1e12, " TB"], [1e9, " GB"], [1e6, " MB"], [1e3, " kB"], [1, " bytes"]];
const tokens = (value, digits = 3) => (Math.abs(value) < 1e6 ? commas(value) : scaled(value, SI, digits, false));

const FORMS = {
  text: String,
  code: String,
  count: (value) => (Number.isInteger(value) ? commas(value) : commas(value, 1)),
  number: (value) => (Number.isInteger(value) && Math.abs(value) < 1e15 ? commas(value) : significant(value, 4)),
  about: (value) => significant(value, 3),
  nats: (value) => value.toFixed(4),
  rough_nats: (value) => value.toFixed(2),
  rate: (value) => significant(value, 3),
  seconds,
  share,
  bytes: (value) => scaled(value, BYTES),
  tokens,
  parameters: (value) => tokens(value, 4),
  flops: (value) => scaled(value, FLOPS),
  age: (value) => { const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([least]) => value >= least) ?? [1, "s"]; return `${Math.floor(value / size)} ${unit}`; },
  tokens_per_s: (value) => (value < 1000 ? significant(value, 3) : commas(value)) + " tokens/s",
};
