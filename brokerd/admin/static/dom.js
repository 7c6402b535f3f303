/* Elements and numbers for the views. Text enters the page only as text nodes. */

import { parseExactly } from "./api.js";

const BYTES_SHOWN = 4096;

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.map((child) => child === false ? "" : child ?? "–"));
  return made;
}

export const link = (text, ...parts) => element("a", { href: address(...parts) }, text);

export const address = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export const number = (value) => (value ?? null) === null ? "–" : Math.round(value).toLocaleString("en");

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (value >= 1024 && step < units.length - 1) { value /= 1024; step += 1; }
  return `${value.toFixed(step ? 1 : 0)} ${units[step]}`;
}

export const seconds = (value) => (value ?? null) === null ? "–" : `${Number(value.toFixed(3))} s`;

/* `headings`: texts; one that begins with "#" is a column of numbers, an empty one has buttons. `rows`: texts or nodes. */
export function table(label, headings, rows) {
  const isNumber = headings.map((heading) => heading.startsWith("#"));
  const cell = (name, content, index) =>
    element(name, { className: isNumber[index] ? "n" : "" }, content);
  const head = element("tr", {}, ...headings.map((text, index) => cell(text ? "th" : "td", text.replace("#", ""), index)));
  const body = rows.map((row) => element("tr", {}, ...row.map((content, index) => cell("td", content, index))));
  if (rows.length === 0) {
    body.push(element("tr", {}, element("td", { colSpan: headings.length, className: "none" }, "none")));
  }
  const wide = element("div", { className: "wide", tabIndex: 0 },
    element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", label);
  return wide;
}

export function facts(pairs) {
  return element("dl", {}, ...pairs.flatMap(([name, value]) =>
    [element("dt", {}, name), element("dd", {}, value)]));
}

/* Makes a block of text that keeps its lines. The keyboard can scroll a long one. */
export function block(text) {
  const isLong = text.length > 400 || text.split("\n").length > 10;
  return element("pre", isLong ? { tabIndex: 0 } : {}, text);
}

export const section = (title, ...children) => element("section", {}, element("h2", {}, title), ...children);

/* Returns the bytes of a field that is text, or base64 if it is given. */
function raw(text, base64) {
  if ((base64 ?? null) === null) { return new TextEncoder().encode(text ?? ""); }
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

function hex(content) {
  const lines = [];
  for (let at = 0; at < Math.min(content.length, BYTES_SHOWN); at += 16) {
    const part = [...content.subarray(at, at + 16)];
    const codes = part.map((code) => code.toString(16).padStart(2, "0")).join(" ");
    const letters = part.map((code) => code > 31 && code < 127 ? String.fromCharCode(code) : ".").join("");
    lines.push(`${at.toString(16).padStart(4, "0")}  ${codes.padEnd(47)}  ${letters}`);
  }
  if (content.length > BYTES_SHOWN) { lines.push(`and ${number(content.length - BYTES_SHOWN)} more bytes`); }
  return lines.join("\n");
}

const unspaced = (text) => text.replaceAll(/\s/g, "");

/* Indents JSON only if that loses nothing: JavaScript drops repeated names. */
function readable(record) {
  if (record.encoding === "msgpack" && (record.value ?? null) !== null) { return JSON.stringify(record.value, null, 1); }
  if (typeof record.value !== "string") { return hex(raw(null, record.value_base64)); }
  try {
    const parsed = parseExactly(record.value);
    const isExact = unspaced(JSON.stringify(parsed)) === unspaced(record.value);
    return isExact ? JSON.stringify(parsed, null, 1) : record.value;
  } catch (error) {
    if (!(error instanceof SyntaxError)) { throw error; }
    return record.value;
  }
}

/* Returns the value of a record as text: in hex, or as JSON or text where it is that. */
export function value(record, asHex) {
  const text = asHex ? hex(raw(record.value, record.value_base64)) : readable(record);
  const more = text.length - 4 * BYTES_SHOWN;
  return more > 0 ? `${text.slice(0, 4 * BYTES_SHOWN)}\nand ${number(more)} more characters` : text;
}

export function key(record) {
  return record.key ?? (record.key_base64 === null ? null : hex(raw(null, record.key_base64)));
}
