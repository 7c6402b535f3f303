/* Requests to the JSON API. */

/* Names in paths, by the part before them. Browsers drop the parts "." and ".." from a path. */
const NAMES = { topics: "topic", groups: "group", keys: "key_id", streams: "stream" };
const isDropped = (part) => part === "." || part === "..";
const nameOf = (parts, index) => parts[0] === "acls" ? "name" : NAMES[parts[index - 1]] ?? "name";

function address(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => (value ?? "") !== "");
  parts.forEach((part, index) => {
    if (isDropped(part)) { given.push([`path.${nameOf(parts, index)}`, part]); }
  });
  const path = parts.map((part) => isDropped(part) ? "-" : encodeURIComponent(part)).join("/");
  return given.length ? `api/v1/${path}?${new URLSearchParams(given)}` : `api/v1/${path}`;
}

/* A number whose text JavaScript would change: an integer beyond 2^53, or 1.0. JSON.stringify writes it as it was. */
function exact(name, value, context) {
  if (typeof value !== "number" || String(value) === context?.source) { return value; }
  if (context?.source !== undefined && JSON.rawJSON) { return JSON.rawJSON(context.source); }
  return Number.isInteger(value) && !Number.isSafeInteger(value) ? `about ${value}: this browser rounds it` : value;
}

/* Parses JSON; numbers that JavaScript would change keep their text for JSON.stringify. */
export const parseExactly = (text) => JSON.parse(text, exact);

/* With it, the broker does not let the browser ask for a password: the console has a form for that. */
const OURS = { "x-requested-with": "XMLHttpRequest" };

let token = null; // of the session: its writes carry it
let hasSession = false;

/* A wrong present password is refused with 401, too, and ends no session. */
const isSessionOver = async () => (await fetch("api/v1/session", { cache: "no-store", headers: OURS })).status !== 200;

async function fetched(path, { headers = {}, parse = JSON.parse, ...options } = {}) {
  const answer = await fetch(path, { cache: "no-store", headers: { ...OURS, ...headers }, ...options });
  const body = parse(await answer.text());
  if (answer.status === 401 && hasSession && await isSessionOver()) {
    [token, hasSession] = [null, false];
    document.dispatchEvent(new CustomEvent("brokerd-session"));
  }
  if (!answer.ok) {
    throw Object.assign(new Error(body.error ?? `status ${answer.status}`), { status: answer.status });
  }
  return body;
}

export const get = (parts, query = {}) => fetched(address(parts, query));

/* Like `get`, for a request that the page repeats by itself: it keeps no session alive. */
export const poll = (parts) => fetched(address(parts), { headers: { "x-poll": "1" } });

/* Like `get`, with the numbers in records as they are. */
export const getExactly = (parts, query) => fetched(address(parts, query), { parse: parseExactly });

/* Returns whether another tab logged in, so that the token of this page is not that of the cookie. */
async function isOtherSession() {
  return hasSession && (await get(["session"])).csrf_token !== token;
}

/* Sends a write; returns its answer. */
export async function send(method, parts, body = {}) {
  const headers = { "content-type": "application/json", ...token === null ? {} : { "x-csrf-token": token } };
  try {
    return await fetched(address(parts), { method, headers, body: JSON.stringify(body) });
  } catch (error) {
    if (error.status === 403 && await isOtherSession()) {
      throw new Error("another tab of this browser logged in anew; load this page again");
    }
    throw error;
  }
}

/* Returns the names of the caller's permissions: by role, or on a topic. None if the API refuses. */
export async function permissions(topic) {
  try {
    const mine = await get(["whoami"], topic === undefined ? {} : { topic });
    return new Set(topic === undefined ? mine.permissions : mine.topic_permissions);
  } catch (error) {
    return new Set();
  }
}

/* -- sessions ----------------------------------------------------------------------------------- */

/* Returns who the caller is, and with `hasSession` whether it can log out. */
export async function sender() {
  const mine = await get(["whoami"]);
  if (!mine.name) { [token, hasSession] = [null, false]; }
  if (mine.auth && mine.name && !hasSession) {
    try {
      ({ csrf_token: token } = await get(["session"]));
      hasSession = true;
    } catch (error) {
      token = null; // a certificate, or a password that the browser sends
    }
  }
  return { ...mine, hasSession };
}

/* Replaces the session of another tab that logged in after this page showed its form. */
export async function logIn(name, password) {
  const begin = () => send("POST", ["session"], { name, password });
  let begun;
  try {
    begun = await begin();
  } catch (error) {
    if (error.status !== 403) { throw error; }
    ({ csrf_token: token } = await get(["session"]).catch(() => { throw error; }));
    begun = await begin();
  }
  [token, hasSession] = [begun.csrf_token, true];
}

export async function logOut() {
  await send("DELETE", ["session"]);
  [token, hasSession] = [null, false];
}
