/* Requests to the JSON API. */

const encoded = (parts) => `api/v1/${parts.map(encodeURIComponent).join("/")}`;

/* With it, the broker does not let the browser ask for a password: the console has a form for that. */
const OURS = { "x-requested-with": "XMLHttpRequest" };

let token = null; // of the session: its writes carry it
let hasSession = false;

async function fetched(path, { headers = {}, ...options } = {}) {
  const answer = await fetch(path, { cache: "no-store", headers: { ...OURS, ...headers }, ...options });
  const body = await answer.json();
  if (answer.status === 401 && hasSession) {
    [token, hasSession] = [null, false];
    document.dispatchEvent(new CustomEvent("brokerd-session"));
  }
  if (!answer.ok) { throw new Error(body.error ?? `status ${answer.status}`); }
  return body;
}

export function get(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => (value ?? "") !== "");
  const path = encoded(parts);
  return fetched(given.length ? `${path}?${new URLSearchParams(given)}` : path);
}

/* Sends a write; returns its answer. */
export function send(method, parts, body = {}) {
  const headers = { "content-type": "application/json", ...token === null ? {} : { "x-csrf-token": token } };
  return fetched(encoded(parts), { method, headers, body: JSON.stringify(body) });
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

export async function logIn(name, password) {
  ({ csrf_token: token } = await send("POST", ["session"], { name, password }));
  hasSession = true;
}

export async function logOut() {
  await send("DELETE", ["session"]);
  [token, hasSession] = [null, false];
}
