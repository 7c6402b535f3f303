/* Dialogs that ask for values and make a change. A refusal of the API shows in full. */

import { element } from "./dom.js";

let ids = 0;

/* Makes the input, select or text area of a field: its type, or `choices` with a select. */
function inputOf({ name, type = "text", value = "", choices, suggestions, ...others }) {
  ids += 1;
  const id = `field-${ids}`;
  if (choices) {
    const options = choices.map(([key, text]) => element("option", { value: key, selected: key === value }, text));
    return [element("select", { id, name, ...others }, ...options)];
  }
  if (type === "textarea") {
    return [element("textarea", { id, name, value, rows: 5, spellcheck: false, ...others })];
  }
  const input = element("input", { id, name, type, value, autocomplete: "off", spellcheck: false, ...others });
  if (!suggestions) { return [input]; }
  input.setAttribute("list", `${id}-list`);
  return [input, element("datalist", { id: `${id}-list` }, ...suggestions.map((text) => element("option", { value: text })))];
}

/* Tell the page about a change: it shows the text, and the view anew. */
export const changed = (text) => document.dispatchEvent(new CustomEvent("brokerd-changed", { detail: text }));

/* Opens a dialog. `text`: paragraphs. `fields`: objects with `name`, `label`, and properties of the input.
   `act` gets the values by name, makes the change and returns the text of the notice, or `notice` and `nodes`,
   which show until the dialog is closed. `preview` gets the values and returns nodes; the change is possible once
   they show. `confirm`: a text to type. */
export function ask({ title, text = [], fields = [], button: verb, preview = null, act, confirm = null }) {
  ids += 1;
  const heading = element("h2", { id: `dialog-${ids}`, className: "name" }, title);
  const [refusal, shown] = [element("p", { className: "damage", hidden: true }), element("div", { className: "preview" })];
  refusal.setAttribute("role", "alert");
  shown.setAttribute("role", "status");
  const all = confirm === null ? fields
    : [...fields, { name: "confirm", label: `Type ${confirm} to confirm`, required: true }];
  const rows = all.map(({ label, hint, ...field }) => {
    const [input, ...more] = inputOf(field);
    const row = element("p", { className: "field" }, element("label", { htmlFor: input.id }, label), input, ...more);
    if (hint) {
      const note = element("small", { id: `${input.id}-hint` }, hint);
      input.setAttribute("aria-describedby", note.id);
      row.append(note);
    }
    return { input, row };
  });
  const values = () => Object.fromEntries(rows.map(({ input }) => [input.name, input.value]));
  const cancel = element("button", { type: "button" }, "Cancel");
  const look = preview === null ? null : element("button", { type: "button" }, "Preview");
  const go = element("button", { className: confirm === null ? "main" : "danger" }, verb);
  const form = element("form", { className: "ask" }, heading, ...text.map((line) => element("p", {}, line)),
    ...rows.map(({ row }) => row), shown, refusal,
    element("p", { className: "actions" }, ...[look, go, cancel].filter(Boolean)));
  const dialog = element("dialog", {}, form);
  dialog.setAttribute("aria-labelledby", heading.id);
  let [isBusy, isPreviewed] = [false, preview === null];

  function update() {
    const isConfirmed = confirm === null || values().confirm === confirm;
    go.disabled = isBusy || !isPreviewed || !isConfirmed;
    if (look) { look.disabled = isBusy; }
  }
  async function attempt(work) {
    if (isBusy || !form.reportValidity()) { return; }
    [isBusy, refusal.hidden] = [true, true];
    update();
    try {
      await work(values());
    } catch (error) {
      refusal.textContent = error.message;
      refusal.hidden = false;
    }
    isBusy = false;
    update();
  }
  look?.addEventListener("click", () => attempt(async (given) => {
    const nodes = await preview(given);
    if (JSON.stringify(values()) !== JSON.stringify(given)) { return; } // the fields were changed meanwhile
    shown.replaceChildren(...nodes);
    isPreviewed = true;
  }));
  form.addEventListener("input", () => {
    if (preview !== null) {
      isPreviewed = false;
      shown.replaceChildren();
    }
    update();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!isPreviewed) { look.click(); return; }
    attempt(async (given) => {
      const result = await act(given);
      const { notice, nodes } = typeof result === "string" ? { notice: result, nodes: null } : result;
      const end = () => {
        dialog.close();
        changed(notice);
      };
      if (nodes === null) { end(); return; }
      const close = button("Close", end);
      form.replaceChildren(heading, element("p", {}, notice), ...nodes, element("p", { className: "actions" }, close));
      close.focus();
    });
  });
  cancel.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  update();
  dialog.showModal();
}

/* Makes a button that opens a dialog or makes a change at once. `label` names the object for screen readers. */
export function button(text, onclick, label = text) {
  const made = element("button", { type: "button", onclick }, text);
  if (label !== text) { made.setAttribute("aria-label", label); }
  return made;
}

export const buttons = (...made) => element("p", { className: "actions" }, ...made.filter(Boolean));
