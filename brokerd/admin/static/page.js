"use strict";

const EVERY_MS = 2000;
const FORBIDDEN_MS = 30000;
const SHOWN_GROUPS = 50;
const SHOWN_LOST = 5;
const OURS = { "x-requested-with": "XMLHttpRequest" }; // the browser itself asks for no password
const POLL = { ...OURS, "x-poll": "1" }; // the session ends without other requests
let before = null;
let [isRefused, isForbidden] = [false, false];
let shownConditions = "";
let explained = 0; // questions about records

const element = (id) => document.getElementById(id);
const show = (id, text) => { element(id).textContent = text; };
const number = (value) => Math.round(value ?? 0).toLocaleString("en");

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (value >= 1024 && step < units.length - 1) { value /= 1024; step += 1; }
  return `${value.toFixed(step ? 1 : 0)} ${units[step]}`;
}

function duration(seconds) {
  const whole = Math.floor(seconds ?? 0);
  const two = (value) => String(value).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

function phase(name, text) {
  element("phase").className = `phase ${name}`;
  show("phase", text);
}

function standing(status) {
  return Object.entries(status.conditions ?? {}).filter(([, reason]) => reason);
}

function badge(status) {
  const { phase: name, reason } = status;
  if (reason) {
    phase(name, `${name}: ${reason}`);
  } else if (name === "ready" && !status.ready) {
    phase("failed", "not ready");
  } else if (standing(status).length) {
    phase(`${name} degraded`, `${name}, degraded`);
  } else {
    phase(name, name);
  }
}

function total(status, key) {
  const value = status[key] ?? 0;
  return typeof value === "object" ? Object.values(value).reduce((sum, one) => sum + one, 0) : value;
}

function rates(status) {
  const shown = [["produced", "records_produced"], ["leased", "leases_granted"], ["settled", "settled"]];
  for (const [id, key] of shown) {
    const now = total(status, key);
    show(id, `${number(now)} since the start`);
    const seconds = before ? status.uptime_seconds - before.uptime_seconds : 0;
    if (seconds > 0) { show(`rate-${id}`, number((now - total(before, key)) / seconds)); }
  }
  before = status;
}

function cells(row, values, firstNumber, firstText) {
  values.forEach((value, index) => {
    const cell = row.insertCell();
    cell.textContent = value;
    if (index >= firstNumber && index < firstText) { cell.className = "n"; }
  });
}

function state(group) {
  const words = [group.paused ? "paused" : "running"];
  if (group.key_ordered) { words.push("by key"); }
  return words.join(", ");
}

function groups(status) {
  const body = element("groups");
  body.replaceChildren();
  const all = [...(status.groups ?? [])].sort((one, other) => other.lag - one.lag);
  for (const group of all.slice(0, SHOWN_GROUPS)) {
    cells(body.insertRow(), [group.topic, group.group, group.partition, number(group.lag),
      number(group.leased), number(group.delayed), number(group.dead), number(group.floor),
      group.committed === null ? "–" : number(group.committed), number(group.start), state(group)], 3, 10);
  }
  const omitted = Math.max(0, all.length - SHOWN_GROUPS) + (status.groups_omitted ?? 0);
  if (all.length === 0 || omitted > 0) {
    const cell = body.insertRow().insertCell();
    cell.colSpan = 11;
    cell.className = "none";
    cell.textContent = all.length ? `and ${number(omitted)} more with less lag` : "none yet";
  }
}

function memory({ memory: known }) {
  if (known?.budget_bytes === undefined) { return []; }
  const kinds = Object.entries(known.kind_limit_bytes);
  return [["memory of clients", `${bytes(total(known, "claimed_bytes"))} of ${bytes(known.budget_bytes)}`],
    ...kinds.map(([kind, most]) => [`… of ${kind}`, `${bytes(known.claimed_bytes[kind])} of at most ${bytes(most)}`])];
}

function facts(status) {
  const wal = status.wal ?? {};
  show("wal-bytes", wal.bytes === undefined ? "–" : bytes(wal.bytes));
  show("wal-segments", wal.segments === undefined ? "" : `${number(wal.segments)} files`);
  const list = [["durability", status.durability], ["data directory", status.data_dir],
    ["core", status.compiled ? "compiled" : "pure Python"],
    ["topics", number(status.topics)], ["uptime", duration(status.uptime_seconds)], ...memory(status)];
  for (const [name, address] of Object.entries(status.listeners ?? {})) { list.push([name, address]); }
  element("facts").replaceChildren(...list.flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const fact = document.createElement("dd");
    term.textContent = name;
    fact.textContent = value ?? "–";
    return [term, fact];
  }));
}

function archive(status) {
  const known = status.archive ?? {};
  const there = (known.version ?? null) !== null;
  show("archive-bytes", there ? bytes(known.bytes) : "–");
  let text = there ? `${number(known.files)} files, ${bytes(known.behind_bytes)} of journal not in it` : "nothing archived yet";
  if (known.error) { text = `cannot be used: ${known.error}`; }
  show("archive-state", text);
}

function offsets(range) {
  return `topic "${range.topic}" partition ${range.partition} offsets ${range.first} to ${range.last}`;
}

function conditions(status) {
  const known = status.damage ?? {};
  const lost = (known.shown ?? []).flatMap((place) => place.lost).slice(0, SHOWN_LOST).map(offsets);
  const items = [...standing(status).map(([name, reason]) => `${name}: ${reason}`), ...lost];
  const text = items.join("\n");
  if (text === shownConditions) { return; }
  shownConditions = text;
  element("conditions").replaceChildren(...items.map((line) => {
    const item = document.createElement("li");
    item.textContent = line;
    return item;
  }));
  element("damage").hidden = items.length === 0;
}

function showLife(life) {
  const record = life.record;
  const written = record === null ? life.record_error
    : `written ${record.append_time}, format ${record.format ?? "admin API"}; the log holds no account of its producer`;
  const more = life.next === null ? "" : `; the first ${life.events.length} events`;
  const problems = life.problems.map((text) => `; ${text}`).join("");
  show("explain-record", `${written}; searched from LSN ${life.from_lsn} on${more}${problems}`);
  for (const event of life.events) {
    cells(element("explain-events").insertRow(), [event.time, event.group, event.event, event.client,
      event.count ?? "", event.seconds ?? "", event.first ?? "", event.reason], 4, 7);
  }
}

/* An answer that comes after another question is dropped. */
async function explain(event) {
  event.preventDefault();
  explained += 1;
  const question = explained;
  element("explain-events").replaceChildren();
  show("explain-record", "searching …");
  const [topic, partition, offset] = ["topic", "partition", "offset"].map((name) =>
    encodeURIComponent(element(`explain-${name}`).value));
  const name = topic === "." || topic === ".." ? `-/records/${partition}/${offset}?path.topic=${topic}`
    : `${topic}/records/${partition}/${offset}`; // browsers drop these names from a path
  try {
    const answer = await fetch(`api/v1/topics/${name}`, { cache: "no-store", headers: OURS });
    const life = await answer.json();
    if (question !== explained) { return; }
    if (answer.ok) { showLife(life); } else { show("explain-record", life.error); }
  } catch (error) {
    if (question === explained) { show("explain-record", "no answer"); }
  }
}

function showStatus(status) {
  document.dispatchEvent?.(new CustomEvent("brokerd-status", { detail: status }));
  show("version", status.version ?? "");
  badge(status);
  rates(status);
  groups(status);
  facts(status);
  archive(status);
  conditions(status);
}

async function refresh() {
  try {
    const answer = await fetch("api/v1/status", { cache: "no-store", headers: POLL });
    isRefused = answer.status === 401;
    if (isRefused && before !== null) {
      before = null;
      document.dispatchEvent?.(new CustomEvent("brokerd-refused"));
    }
    isForbidden = answer.status === 403;
    const status = await answer.json();
    if (status.phase === undefined) { phase("gone", `status: ${status.error}`); } else { showStatus(status); }
  } catch (error) {
    phase("gone", "no answer");
  }
  if (!isRefused) { setTimeout(refresh, isForbidden ? FORBIDDEN_MS : EVERY_MS); }
}

/* A login ends the refusal. */
document.addEventListener?.("brokerd-session", () => {
  if (isRefused) {
    isRefused = false;
    refresh();
  }
});

element("explain").onsubmit = explain;
refresh();
