/* Requests to the JSON API. */

const encoded = (parts) => `api/v1/${parts.map(encodeURIComponent).join("/")}`;

async function fetched(path, options = {}) {
  const answer = await fetch(path, { cache: "no-store", ...options });
  const body = await answer.json();
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
  const headers = { "content-type": "application/json" };
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
