/* Lists in pages, and the forms of views. */

import { button, buttons } from "./dialogs.js";
import { address, element, link, table } from "./dom.js";

/* Returns the links to the first and the next page of a view. */
export function pages(parts, name, first, next) {
  const links = [];
  if (first > 0) { links.push(link("first page", ...parts)); }
  if (next !== null) { links.push(element("a", { href: `${address(...parts)}?${name}=${next}` }, "next page")); }
  return element("p", { className: "pages" }, ...links);
}

export function field(label, properties) {
  const input = element("input", properties);
  return [input, element("label", {}, `${label} `, input)];
}

export function form(act, ...children) {
  return element("form", { onsubmit: (event) => { event.preventDefault(); act(); } }, ...children);
}

/* Shows a list in pages. `load` gets the place of a page, null for the first, and returns `rows`,
   `next` (the place of the next page, or null), and perhaps more about the page in `text`, and `shown`, a function
   that is called when the page shows. An answer that arrives after that to a later request is dropped. */
export function paged(label, headings, load) {
  const [place, note] = [element("div", {}), element("p", { className: "total" })];
  note.setAttribute("role", "status");
  let following = null;
  const more = button("Next page", () => show(following, true), `next page of ${label}`);
  const first = button("First page", () => show(null, true), `first page of ${label}`);
  [more.hidden, first.hidden] = [true, true];
  let visits = 0;
  async function show(from, isAsked = false) {
    visits += 1;
    const visit = visits;
    try {
      const { rows, next, text = "", shown = null } = await load(from);
      if (visit !== visits) { return; }
      following = next;
      [more.hidden, first.hidden] = [next === null, from === null];
      note.textContent = text;
      place.replaceChildren(table(label, headings, rows));
      shown?.();
      if (isAsked) { place.firstChild.focus(); }
    } catch (error) {
      if (visit !== visits) { return; }
      note.textContent = error.message;
    }
  }
  return { show, nodes: [note, place, buttons(first, more)] };
}
