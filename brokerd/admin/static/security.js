/* Accounts, access lists, API keys and sessions: their view, and the buttons that change them. */

import { get, send } from "./api.js";
import { ask, button, buttons } from "./dialogs.js";
import { block, element, facts, number, seconds, section, table } from "./dom.js";

const ROWS = 1000;
const GRANTED = ["read", "write", "admin"];
const YES_NO = [["yes", "yes"], ["no", "no"]];
const ROLES = "separated by commas, for example consumer, producer, monitor, admin";
const yes = (value) => value ? "yes" : "no";
const words = (text) => text.split(",").map((word) => word.trim()).filter(Boolean);

/* -- accounts ----------------------------------------------------------------------------------- */

const PASSWORDS = [
  { name: "password", label: "Password", type: "password", autocomplete: "new-password" },
  { name: "again", label: "Password again", type: "password", autocomplete: "new-password" },
];

function checkPasswords({ password, again }) {
  if (password !== again) { throw new Error("the two passwords differ"); }
}

function createAccount(may) {
  const [password, again] = PASSWORDS;
  return may.has("admin") && button("Create an account …", () => ask({
    title: "Create an account",
    fields: [
      { name: "name", label: "Name", required: true },
      { ...password, hint: "empty: the account has no password, and logs in by keys or certificates" }, again,
      { name: "roles", label: "Roles", hint: ROLES },
    ],
    button: "Create",
    act: async (given) => {
      checkPasswords(given);
      await send("POST", ["users"], { name: given.name, password: given.password, roles: words(given.roles) });
      return `Account ${given.name} is created.`;
    },
  }));
}

function changeAccount(may, account) {
  return may.has("admin") && button("Change …", () => ask({
    title: `Account ${account.name}`,
    fields: [
      { name: "roles", label: "Roles", value: account.roles.join(", "), hint: ROLES },
      { name: "enabled", label: "Enabled", choices: YES_NO, value: yes(account.enabled), hint: "a disabled account cannot log in" },
    ],
    button: "Change",
    act: async (given) => {
      const changes = {}; // what another administrator changed meanwhile stays
      if (given.roles !== account.roles.join(", ")) { changes.roles = words(given.roles); }
      if (given.enabled !== yes(account.enabled)) { changes.enabled = given.enabled === "yes"; }
      await send("PATCH", ["users", account.name], changes);
      return `Account ${account.name} is changed.`;
    },
  }), `change account ${account.name}`);
}

function changePassword(name, isOwn, label, text) {
  const [password, again] = PASSWORDS.map((field) => ({ ...field, required: true }));
  return button(text, () => ask({
    title: `Password of account ${name}`,
    text: [isOwn ? "Your other sessions end." : "The sessions of the account end."],
    fields: [
      ...isOwn ? [{ name: "current", label: "Present password", type: "password", autocomplete: "current-password", required: true }] : [],
      password, again,
    ],
    button: "Change the password",
    act: async (given) => {
      checkPasswords(given);
      await send("POST", ["users", name, "password"], { password: given.password, current: given.current ?? "" });
      return `The password of account ${name} is changed.`;
    },
  }), label);
}

function deleteAccount(may, { name }) {
  return may.has("admin") && button("Delete …", () => ask({
    title: `Delete account ${name}`,
    text: [`Deletes the account ${name} and its API keys. Its open connections lose its permissions. This cannot be undone.`],
    confirm: name,
    button: "Delete the account",
    act: async () => {
      const { quota_stays } = await send("DELETE", ["users", name]);
      return `Account ${name} is deleted.${quota_stays ? " Its quota stays." : ""}`;
    },
  }), `delete account ${name}`);
}

/* -- access lists ------------------------------------------------------------------------------- */

const granted = (grants) => Object.entries(grants).map(([name, given]) => `${name}: ${given.join(", ")}`);
const GRANTS = "a line each: NAME: read, write, admin";

/* Reads lines `NAME: read, write`. A name may contain colons; a permission does not. Spaces around a name belong to it
   only if `before`, the grants that the text began with, has it so. */
function grantsOf(text, before) {
  const grants = new Map();
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const colon = line.lastIndexOf(":");
    const given = words(line.slice(colon + 1));
    const wrong = given.find((word) => !GRANTED.includes(word));
    if (colon < 1 || given.length === 0 || wrong !== undefined) {
      throw new Error(`“${line.trim()}” is not NAME: and permissions of ${GRANTED.join(", ")}`);
    }
    const name = Object.hasOwn(before, line.slice(0, colon)) ? line.slice(0, colon) : line.slice(0, colon).trim();
    if (grants.has(name)) { throw new Error(`${name} stands twice`); }
    grants.set(name, given);
  }
  return Object.fromEntries(grants);
}

/* Returns the permissions of `some` that `others` lack, by name. */
function without(some, others) {
  const has = (name, one) => Object.hasOwn(others, name) && others[name].includes(one);
  const left = Object.entries(some).map(([name, given]) => [name, given.filter((one) => !has(name, one))]);
  return Object.fromEntries(left.filter(([, given]) => given.length));
}

const KINDS = [["topics", "the topic of this name"], ["prefixes", "all topics that begin with it"]];
const listPath = ({ topic, prefix }) => ["acls", prefix ? "prefixes" : "topics", topic];
const listName = ({ topic, prefix }) => `${prefix ? "prefix" : "topic"} ${topic}`;

/* With `list`, grants and revokes what differs from it; without, asks for its topic or prefix. */
function setAccessList(may, list) {
  const { public: isPublic = false, users = {}, roles = {} } = list ?? {};
  const label = list ? `change the access list of ${listName(list)}` : "Set an access list …";
  return may.has("admin") && button(list ? "Change …" : label, () => ask({
    title: list ? `Access list of ${listName(list)}` : "Set an access list",
    text: list ? [] : ["Replaces the access list of that topic or prefix, if it has one. The topic need not exist."],
    fields: [
      ...list ? [] : [{ name: "topic", label: "Name", required: true }, { name: "kind", label: "Applies to", choices: KINDS, value: "topics" }],
      { name: "isPublic", label: "Public", choices: YES_NO, value: yes(isPublic), hint: "every client that has logged in may read and write" },
      { name: "users", label: "Accounts", type: "textarea", value: granted(users).join("\n"), hint: GRANTS },
      { name: "roles", label: "Roles", type: "textarea", value: granted(roles).join("\n"), hint: GRANTS },
    ],
    button: "Set",
    act: async (given) => {
      const place = list ?? { topic: given.topic, prefix: given.kind === "prefixes" };
      const after = { public: given.isPublic === "yes", users: grantsOf(given.users, users), roles: grantsOf(given.roles, roles) };
      if (list) {
        await send("PATCH", listPath(place), {
          ...after.public === isPublic ? {} : { public: after.public },
          grant_users: without(after.users, users), revoke_users: without(users, after.users),
          grant_roles: without(after.roles, roles), revoke_roles: without(roles, after.roles),
        });
      } else { await send("PUT", listPath(place), after); }
      return `The access list of ${listName(place)} is set.`;
    },
  }), label);
}

function deleteAccessList(may, list) {
  return may.has("admin") && button("Delete …", () => ask({
    title: `Delete the access list of ${listName(list)}`,
    text: ["What it grants ends. A topic without any access list may be public: see security.default_public."],
    confirm: list.topic,
    button: "Delete the access list",
    act: async () => {
      await send("DELETE", listPath(list));
      return `The access list of ${listName(list)} is deleted.`;
    },
  }), `delete the access list of ${listName(list)}`);
}

/* -- API keys ----------------------------------------------------------------------------------- */

function makeKey(may, names) {
  return may.has("admin") && button("Create an API key …", () => ask({
    title: "Create an API key",
    text: ["A program logs in with the key instead of a password. It shows once, after this."],
    fields: [
      { name: "user", label: "Account", required: true, suggestions: names },
      { name: "label", label: "Label", hint: "for example the program and its host" },
    ],
    button: "Create",
    act: async (given) => {
      const made = await send("POST", ["keys"], given);
      return { notice: `API key ${made.key_id} of account ${made.user} is created.`,
        nodes: [element("p", {}, "Copy the key now; the broker cannot show it again."), block(made.key)] };
    },
  }));
}

function revokeKey(may, one) {
  return may.has("admin") && button("Revoke …", () => ask({
    title: `Revoke API key ${one.key_id}`,
    text: [`Programs that use the key ${one.label ? `“${one.label}” ` : ""}of account ${one.user} cannot log in any more.`],
    button: "Revoke the key",
    act: async () => {
      await send("DELETE", ["keys", one.key_id]);
      return `API key ${one.key_id} is revoked.`;
    },
  }), `revoke API key ${one.key_id}`);
}

/* -- sessions ----------------------------------------------------------------------------------- */

function endSession(may, one) {
  return may.has("admin") && button("End …", () => ask({
    title: `End session ${one.id}`,
    text: [`The browser of ${one.user} at ${one.address} has to log in again.`],
    button: "End the session",
    act: async () => {
      await send("DELETE", ["sessions", String(one.id)]);
      return `Session ${one.id} is ended.`;
    },
  }), `end session ${one.id}`);
}

/* -- the view ----------------------------------------------------------------------------------- */

export async function security() {
  const mine = await get(["whoami"]);
  const may = new Set(mine.permissions);
  const own = section("This browser", facts([
    ["account", mine.name || "anonymous"], ["roles", mine.roles.join(", ") || "–"],
    ["permissions on all topics", mine.permissions.join(", ") || "–"], ["security", mine.auth ? "on" : "off"]]),
  buttons(mine.auth && mine.name && changePassword(mine.name, true, undefined, "Change your password …")));
  let names = [];
  const accounts = await listed("Accounts", "users", "users", ["account", "roles", "enabled", "password", "changed", ""], (one) => {
    names = [...names, one.name];
    return [one.name, one.roles.join(", "), yes(one.enabled), yes(one.has_password), one.updated,
      buttons(changeAccount(may, one),
        one.name !== mine.name && may.has("admin") && changePassword(one.name, false, `change the password of ${one.name}`, "Password …"),
        deleteAccount(may, one))];
  }, createAccount(may));
  const others = await Promise.all([
    listed("Access lists", "acls", "access_lists", ["topic", "applies to", "public", "accounts", "roles", ""], (one) =>
      [one.topic, one.prefix ? "the prefix" : "the topic", yes(one.public), granted(one.users).join("; "),
        granted(one.roles).join("; "), buttons(setAccessList(may, one), deleteAccessList(may, one))], setAccessList(may)),
    listed("API keys", "keys", "keys", ["key id", "account", "label", "created", ""], (one) =>
      [one.key_id, one.user, one.label, one.created, revokeKey(may, one)], makeKey(may, names)),
    ...mine.auth ? [
      listed("Sessions of browsers", "sessions", "sessions", ["#session", "account", "address", "#open", "#without use", "#left", ""], (one) =>
        [number(one.id), one.user + (one.current ? " (this browser)" : ""), one.address, seconds(one.open_seconds),
          seconds(one.idle_seconds), seconds(one.seconds_left), endSession(may, one)])] : [],
  ]);
  return [own, accounts, ...others];
}

/* Returns a section with the first entries of a list and its button, or with the refusal. */
async function listed(title, path, name, headings, row, create = false) {
  try {
    const page = await get([path], { limit: ROWS });
    const more = page.next === null ? "" : `, the first ${number(page[name].length)}`;
    return section(title + more, buttons(create), table(title, headings, page[name].map(row)));
  } catch (error) {
    return section(title, element("p", { className: "none" }, error.message));
  }
}
