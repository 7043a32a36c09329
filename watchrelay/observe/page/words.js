// Numbers and times as people read them, and elements made of nothing but text: no string ever becomes HTML.

const numbers = new Intl.NumberFormat("en");
let offsetMs = 0;

/** Take the relay's clock: ages are computed with it, whatever the clock of this machine says. */
export function setClock(atMs) {
  offsetMs = atMs - Date.now();
}

export const now = () => Date.now() + offsetMs;

export const count = (value) => numbers.format(value);

export function duration(ms) {
  if (ms < 1000) return ms < 10 ? `${Math.round(ms * 10) / 10} ms` : `${Math.round(ms)} ms`;
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  const min = Math.floor(s / 60);
  if (min < 60) return `${min} min`;
  const h = Math.floor(min / 60);
  return h < 24 ? `${h} h ${min % 60} min` : `${Math.floor(h / 24)} d ${h % 24} h`;
}

/** How long ago, in whole units: below a second there is nothing to read. */
export const age = (atMs) => (now() - atMs < 1000 ? "now" : duration(now() - atMs));

export function rate(perS) {
  if (perS < 0.05) return "0";
  return perS < 10 ? perS.toFixed(1) : count(Math.round(perS));
}

export function bytes(size) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (size < 1024) return `${size < 10 && unit !== "B" ? size.toFixed(1) : Math.round(size)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} GiB`;
}

/** The moment in UTC: of today without its date. */
export function clock(atMs) {
  const written = new Date(atMs).toISOString();
  const today = new Date(now()).toISOString().slice(0, 10);
  return written.slice(0, 10) === today ? written.slice(11, 19) : `${written.slice(0, 10)} ${written.slice(11, 19)}`;
}

/** A moment that a row gives as milliseconds or as RFC 3339; null when it is neither. */
export function moment(value) {
  const atMs = typeof value === "string" ? Date.parse(value) : value;
  return Number.isFinite(atMs) && atMs > 0 ? atMs : null;
}

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Text in which `this` is a command or a value: as nodes, what is between a pair of backquotes as code. */
export function prose(text) {
  const parts = text.replace(/: ((?:kafka-\S+\.sh|for topic in) [^`]+)$/, ": `$1`").split("`");
  const odd = parts.length % 2 === 0; // one of them has no fellow: all of it is text
  return odd ? [text] : parts.map((part, index) => (index % 2 ? (COMMAND.test(part) ? command(part) : el("code", {}, part)) : part));
}

const COMMAND = /^(kafka-\S+\.sh|kubectl|watchrelay|helm|for) /;

/** A command, whole, with a button that copies it; where the browser gives no clipboard (http, not localhost) it selects it. */
function command(text) {
  const code = el("code", {}, text);
  const button = el("button", { type: "button", class: "copy", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(text);
      say(button, "Copied");
    } catch {
      say(button, "Selected");
    }
    setTimeout(() => say(button, "Copy"), 2000);
  });
  return el("span", { class: "command" }, code, button);
}

export function svg(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** Write only what differs: an unchanged page costs nothing, and is not read aloud again. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function mark(node, name, value) {
  if (value === null) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}
