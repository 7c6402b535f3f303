/* Schemas: their views, and the buttons that change them. */

import { get, permissions, send } from "./api.js";
import { ask, button, buttons } from "./dialogs.js";
import { block, element, facts, link, number, section, table } from "./dom.js";
import { pages } from "./lists.js";

const ROWS = 100;
const TYPES = [["json", "JSON Schema"], ["avro", "Avro"], ["protobuf", "Protobuf"]];
const MODES = ["none", "backward", "forward", "full", "backward_transitive", "forward_transitive", "full_transitive"]
  .map((mode) => [mode, mode.replace("_", ", ")]);

/* With `latest`, a version of that schema, registers the next one; without, asks for the name. */
function register(may, latest) {
  const label = latest ? "Register a version …" : "Register a schema …";
  return may.has("write") && button(label, () => ask({
    title: latest ? `The next version of schema ${latest.name}` : "Register a schema",
    text: ["The broker checks the text, and that it is compatible with earlier versions."],
    fields: [
      ...latest ? [] : [{ name: "name", label: "Name", required: true, hint: "that of the topic whose records it describes" }],
      { name: "type", label: "Type", choices: TYPES, value: latest?.type ?? "json" },
      { name: "definition", label: "Text", type: "textarea", rows: 12, required: true, value: latest?.definition ?? "" },
    ],
    button: "Register",
    act: async ({ name = latest?.name, type, definition }) => {
      const { version } = await send("POST", ["schemas", name, "versions"], { type, definition });
      location.hash = `#/schemas/${encodeURIComponent(name)}/${version}`;
      return `Version ${number(version)} of schema ${name} is registered.`;
    },
  }));
}

function setCompatibility(may, { name, compatibility }) {
  return may.has("admin") && button("Set compatibility …", () => ask({
    title: `Compatibility of schema ${name}`,
    text: ["Versions that are registered from then on must be compatible in this way; existing ones are not checked."],
    fields: [{ name: "compatibility", label: "Compatibility", choices: MODES, value: compatibility }],
    button: "Set",
    act: async (given) => {
      const after = await send("PATCH", ["schemas", name], given);
      return `The compatibility of schema ${name} is ${after.compatibility}.`;
    },
  }));
}

/* Without `version`, deletes the schema. */
function remove(may, name, version) {
  const what = version === undefined ? `schema ${name}` : `version ${version} of schema ${name}`;
  return may.has("admin") && button(version === undefined ? "Delete the schema …" : "Delete this version …", () => ask({
    title: `Delete ${what}`,
    text: [version === undefined ? `Deletes the schema ${name} with all its versions. This cannot be undone.`
      : `Deletes the ${what}. This cannot be undone.`],
    confirm: name,
    button: version === undefined ? "Delete the schema" : "Delete the version",
    act: async () => {
      await send("DELETE", ["schemas", name, ...version === undefined ? [] : ["versions", String(version)]]);
      location.hash = "#/schemas";
      return `The ${what} is deleted.`;
    },
  }));
}

export async function schemas(parts, query) {
  const first = Number(query.get("first") ?? 0);
  const [page, may] = await Promise.all([get(["schemas"], { first, limit: ROWS }), permissions()]);
  const rows = page.schemas.map((one) => [
    one.versions.length ? link(one.name, "schemas", one.name, String(one.versions.at(-1).version)) : one.name,
    one.compatibility, one.versions.map((version) => `${version.version} (${version.type})`).join(", "),
    one.versions.at(-1)?.created]);
  return [
    buttons(register(may)),
    section("Schemas, by name", table("schemas", ["schema", "compatibility", "versions", "last version of"], rows),
      pages(["schemas"], "first", first, page.next))];
}

export async function schema([, name, version]) {
  const [found, all, may] = await Promise.all([
    get(["schemas", name, "versions", version]), get(["schemas", name]), permissions(name)]);
  return [
    element("h2", { className: "name" }, `Schema ${name}`),
    facts([["version", number(found.version)], ["type", found.type], ["compatibility", found.compatibility],
      ["registered", found.created]]),
    buttons(register(may, found), setCompatibility(may, all), remove(may, name, found.version), remove(may, name)),
    section("Text", block(found.definition)),
    section("Versions", element("p", { className: "pages" },
      ...all.versions.map((one) => link(String(one.version), "schemas", name, String(one.version)))))];
}
