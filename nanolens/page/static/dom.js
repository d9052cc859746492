// Elements, and nothing but text inside them: no string ever becomes markup here, whoever wrote it.

const SVG = "http://www.w3.org/2000/svg";

/** el("p", { class: "note", on: { click } }, "words", otherElement): strings become text. */
export function el(tag, about = {}, ...children) {
  return dressed(document.createElement(tag), about, children);
}

export function svg(tag, about = {}, ...children) {
  return dressed(document.createElementNS(SVG, tag), about, children);
}

function dressed(element, about, children) {
  for (const [name, value] of Object.entries(about)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "style") for (const [property, to] of Object.entries(value)) element.style.setProperty(property, to);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Puts new children in the place of the old. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Does `action`, which builds anew what is inside `element`; what had the focus there (known by its data-key) gets it back. */
export function keepingFocus(element, action) {
  const key = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  action();
  if (key !== undefined) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

/** For screen readers. */
export function announce(text) {
  const said = document.getElementById("said");
  if (said) said.textContent = text;
}

export function button(text, click, about = {}) {
  return el("button", { type: "button", ...about, on: { click } }, text);
}

/** At most one call in `ms`, the last one never lost. */
export function seldom(ms, action) {
  let timer = null;
  let next = null;
  return (...given) => {
    next = given;
    if (timer) return;
    timer = setTimeout(() => {
      timer = null;
      action(...next);
    }, ms);
  };
}
