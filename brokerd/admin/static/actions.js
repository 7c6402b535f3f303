/* Buttons that change the broker. Each is null if the caller lacks the permission. */

import { get, send } from "./api.js";
import { ask, button } from "./dialogs.js";
import { element, number, table } from "./dom.js";

const COMPACT = [["", "default of the broker (no)"], ["yes", "yes"], ["no", "no"]];
/* Reads a number. One that JavaScript would round is refused: another offset would be sent. */
function numeric(text) {
  const value = Number(text);
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) { throw new Error(`${text} is too large for this page`); }
  return value;
}
const optional = (text) => text === "" ? null : numeric(text);
const shown = (value) => value === null ? "" : String(value);

/* -- topics ------------------------------------------------------------------------------------- */

const settingFields = (settings) => [
  { name: "retention_seconds", label: "Retention by age, in seconds", type: "number", min: 0, step: "any",
    value: shown(settings.retention_seconds), hint: "empty: default of the broker; 0: no limit" },
  { name: "retention_bytes", label: "Retention by size, in bytes", type: "number", min: 0,
    value: shown(settings.retention_bytes), hint: "empty: default of the broker; 0: no limit" },
  { name: "ttl_seconds", label: "Time to live, in seconds", type: "number", min: 0, step: "any",
    value: shown(settings.ttl_seconds), hint: "of new records; empty: default of the broker; 0: no limit" },
  { name: "compact", label: "Keep only the latest record of each key, in the archive", choices: COMPACT,
    value: settings.compact === null ? "" : settings.compact ? "yes" : "no" },
];

const settingsOf = (given) => ({
  retention_seconds: optional(given.retention_seconds),
  retention_bytes: optional(given.retention_bytes),
  ttl_seconds: optional(given.ttl_seconds),
  compact: given.compact === "" ? null : given.compact === "yes",
});

export function createTopic(may) {
  const none = { retention_seconds: null, retention_bytes: null, ttl_seconds: null, compact: null };
  return may.has("admin") && button("Create a topic …", () => ask({
    title: "Create a topic",
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "partitions", label: "Partitions", type: "number", min: 1, max: 32767, value: "1", required: true },
      ...settingFields(none),
    ],
    button: "Create",
    act: async (given) => {
      await send("POST", ["topics"],
        { name: given.name, partitions: Number(given.partitions), settings: settingsOf(given) });
      return `Topic ${given.name} is created.`;
    },
  }));
}

export function configureTopic(may, topic) {
  return may.has("admin") && button("Change settings …", () => ask({
    title: `Settings of topic ${topic.name}`,
    fields: settingFields(topic.settings),
    button: "Change",
    act: async (given) => {
      const after = Object.entries(settingsOf(given)).filter(([name, value]) => value !== topic.settings[name]);
      await send("PATCH", ["topics", topic.name, "settings"], Object.fromEntries(after));
      return `The settings of topic ${topic.name} are changed.`;
    },
  }));
}

export function deleteTopic(may, topic) {
  return may.has("admin") && button("Delete …", () => ask({
    title: `Delete topic ${topic.name}`,
    text: [`Deletes the topic ${topic.name} with all its records, its delayed messages and its ${number(topic.groups)} groups. `
      + "This cannot be undone."],
    confirm: topic.name,
    button: "Delete the topic",
    act: async () => {
      await send("DELETE", ["topics", topic.name]);
      location.hash = "#/topics";
      return `Topic ${topic.name} is deleted.`;
    },
  }), `delete topic ${topic.name}`);
}

export function cancelDelayed(may, topicName, id) {
  return may.has("write") && button("Cancel …", () => ask({
    title: `Cancel delayed message ${id}`,
    text: [`The message ${id} of topic ${topicName} is not delivered.`],
    button: "Cancel the message",
    act: async () => {
      await send("DELETE", ["topics", topicName, "scheduled", String(id)]);
      return `Delayed message ${id} is cancelled.`;
    },
  }), `cancel delayed message ${id}`);
}

/* -- groups ------------------------------------------------------------------------------------- */

export function pauseGroup(may, path, group) {
  const verb = group.paused ? "resume" : "pause";
  const text = group.paused
    ? `Consumers of group ${group.group} lease records again.`
    : `Group ${group.group} grants no more leases until it is resumed. Leases that it granted stay; fetches by offset go on.`;
  return may.has("admin") && button(group.paused ? "Resume …" : "Pause …", () => ask({
    title: `${group.paused ? "Resume" : "Pause"} group ${group.group}`,
    text: [text],
    button: group.paused ? "Resume" : "Pause",
    act: async () => {
      await send("POST", [...path, verb]);
      return `Group ${group.group} is ${verb}d.`;
    },
  }));
}

const TARGETS = [["start", "the start"], ["end", "the end"], ["offset", "the offset"], ["time", "the time"]];

function target(given) {
  const to = given.to === "time" ? { to_time: new Date(`${given.time}Z`).toISOString() }
    : { to: given.to === "offset" ? numeric(given.offset) : given.to };
  return given.partition === "" ? to : { ...to, partition: numeric(given.partition) };
}

function checkTarget(given) {
  if (given.to === "offset" && given.offset === "") { throw new Error("give the offset"); }
  if (given.to === "time" && given.time === "") { throw new Error("give the time"); }
}

async function previewSeek(path, given) {
  checkTarget(given);
  const found = await get([...path, "seek"], target(given));
  const more = found.partitions - found.by_partition.length;
  return [
    element("p", {}, `Lag ${number(found.lag)} becomes ${number(found.new_lag)}. ${number(found.leased)} leases end.`),
    table("what the seek changes",
      ["#partition", "#floor", "#new floor", "#lag", "#new lag", "#leases that end", "#dead letters", "#committed"],
      found.by_partition.map((one) => [one.partition, one.floor, one.new_floor, one.lag, one.new_lag, one.leased,
        one.dead, one.committed].map(number))),
    ...more > 0 ? [element("p", {}, `and ${number(more)} more partitions`)] : []];
}

export function seekGroup(may, path, group) {
  return may.has("admin") && button("Seek …", () => ask({
    title: `Seek group ${group.group}`,
    text: ["Records below the new floor are settled, records from there on are leased again. Leases and delays end."],
    fields: [
      { name: "to", label: "To", choices: TARGETS, value: "start" },
      { name: "offset", label: "Offset", type: "number", min: 0, hint: "for “the offset”" },
      { name: "time", label: "Time (UTC)", type: "datetime-local", step: 1, hint: "for “the time”: the first record appended then or later" },
      { name: "partition", label: "Partition", type: "number", min: 0, max: 32767, hint: "empty: all partitions" },
    ],
    preview: (given) => previewSeek(path, given),
    button: "Seek",
    act: async (given) => {
      await send("POST", [...path, "seek"], target(given));
      return `Group ${group.group} is moved.`;
    },
  }));
}

const GROUP_NUMBERS = [
  ["max_attempts", "Most attempts", { min: 1, max: 1000000 }, "then the record becomes a dead letter"],
  ["backoff_base_seconds", "Shortest back-off, in seconds", { min: 0, step: "any" }, "after the first failure"],
  ["backoff_max_seconds", "Longest back-off, in seconds", { min: 0, step: "any" }, ""],
  ["default_duration_seconds", "Lease, in seconds", { min: 0, step: "any" }, "of clients that ask for no duration"],
];
const DEFAULT = "empty: default of the broker";

/* Changes the settings that differ from those that show. */
export function configureGroup(may, path, { group, settings }) {
  const wanted = (given) => ({
    ...Object.fromEntries(GROUP_NUMBERS.map(([name]) => [name, optional(given[name])])),
    attempts: given.attempts,
    key_ordered: given.key_ordered === "yes",
  });
  return may.has("admin") && button("Change settings …", () => ask({
    title: `Settings of group ${group}`,
    fields: [
      ...GROUP_NUMBERS.map(([name, label, bounds, hint]) => (
        { name, label, type: "number", ...bounds, value: shown(settings[name]), hint: [hint, DEFAULT].filter(Boolean).join("; ") })),
      { name: "attempts", label: "Attempts are", choices: [["failures", "failures"], ["grants", "grants of a lease"]],
        value: settings.attempts },
      { name: "key_ordered", label: "Records of a key one after the other", choices: [["yes", "yes"], ["no", "no"]],
        value: settings.key_ordered ? "yes" : "no" },
    ],
    button: "Change",
    act: async (given) => {
      const after = Object.entries(wanted(given)).filter(([name, value]) => value !== settings[name]);
      await send("PATCH", [...path, "settings"], Object.fromEntries(after));
      return `The settings of group ${group} are changed.`;
    },
  }));
}

export function deleteGroup(may, path, group) {
  return may.has("admin") && button("Remove …", () => ask({
    title: `Remove group ${group.group}`,
    text: [`Forgets the position, leases and ${number(group.dead)} dead letters of group ${group.group} of topic ${group.topic}. `
      + "The records stay. This cannot be undone."],
    confirm: group.group,
    button: "Remove the group",
    act: async () => {
      await send("DELETE", path);
      location.hash = `#/topics/${encodeURIComponent(group.topic)}`;
      return `Group ${group.group} is removed.`;
    },
  }));
}

/* -- leases and dead letters -------------------------------------------------------------------- */

export function releaseLease(may, path, lease) {
  const place = `partition ${lease.partition} offset ${lease.offset}`;
  return may.has("admin") && button("End …", () => ask({
    title: `End the lease of ${place}`,
    text: [`${lease.client} loses the lease. The record is ready again; no failure is counted.`],
    button: "End the lease",
    act: async () => {
      await send("POST", [...path, "leases", "release"], { partition: lease.partition, offset: lease.offset });
      return `The lease of ${place} is ended.`;
    },
  }), `end the lease of ${place}`);
}

/* `reasons`: those of the dead letters that show. `reason` is the chosen one, or empty. */
function changeLetters(verb, path, reason, reasons) {
  const done = verb === "replay" ? "replayed" : "purged";
  const text = verb === "replay"
    ? "The chosen dead letters are ready again, with counters at zero."
    : "Forgets the chosen dead letters; their records stay settled. This cannot be undone.";
  return button(verb === "replay" ? "Replay …" : "Purge …", () => ask({
    title: `${verb === "replay" ? "Replay" : "Purge"} dead letters`,
    text: [text],
    fields: [
      { name: "reason", label: "Reason", value: reason, suggestions: reasons, hint: "the whole reason; empty: every reason" },
      { name: "partition", label: "Partition", type: "number", min: 0, max: 32767, hint: "empty: all partitions" },
      { name: "first", label: "From offset", type: "number", min: 0, hint: "empty: from the start" },
      { name: "end", label: "To offset (exclusive)", type: "number", min: 0, hint: "empty: to the end" },
    ],
    confirm: verb === "purge" ? path[3] : null,
    button: verb === "replay" ? "Replay" : "Purge",
    act: async (given) => {
      const choice = { first: numeric(given.first), end: optional(given.end), partition: optional(given.partition),
        reason: given.reason || null };
      const { count } = await send("POST", [...path, "dead-letters", verb], choice);
      return `${number(count)} dead letters are ${done}.`;
    },
  }));
}

export const replayLetters = (may, ...others) => may.has("write") && changeLetters("replay", ...others);

export const purgeLetters = (may, ...others) => may.has("admin") && changeLetters("purge", ...others);

/* -- connections -------------------------------------------------------------------------------- */

export function closeConnection(may, connection) {
  const name = `connection ${connection.id}`;
  const client = `${connection.user || "anonymous"} at ${connection.address}`;
  return may.has("admin") && button("Close …", () => ask({
    title: `Close ${name}`,
    text: [`Closes the ${connection.format} ${name} of ${client}. Answers that have not left are dropped.`],
    button: "Close the connection",
    act: async () => {
      await send("DELETE", ["connections", String(connection.id)]);
      return `The ${name} is closed.`;
    },
  }), `close ${name}`);
}

/* -- quotas and clock --------------------------------------------------------------------------- */

const KINDS = ["account", "address", "listener", "default"].map((kind) => [kind, kind]);

/* With `quota`, changes the limits that differ from it; without, asks for its kind and name. */
export function setQuota(may, quota) {
  const limits = quota?.limits ?? { requests: 0, bytes_in: 0, bytes_out: 0, connections: 0 };
  const limit = (name, label) => (
    { name, label, type: "number", min: 0, value: String(limits[name]), required: true, hint: "0: no limit" });
  const names = quota ? [] : [
    { name: "kind", label: "Kind", choices: KINDS, value: "account" },
    { name: "name", label: "Name", required: true, hint: "of the account, the address or the listener; * for the default" },
  ];
  const label = quota ? `change the quota of ${quota.kind} ${quota.name}` : "Set a quota …";
  return may.has("admin") && button(quota ? "Change …" : label, () => ask({
    title: quota ? `Quota of ${quota.kind} ${quota.name}` : "Set a quota",
    fields: [...names, limit("requests", "Requests a second"), limit("bytes_in", "Bytes in a second"),
      limit("bytes_out", "Bytes out a second"), limit("connections", "Connections")],
    button: "Set",
    act: async ({ kind = quota?.kind, name = quota?.name, ...values }) => {
      const numbers = Object.fromEntries(Object.entries(values).map(([key, value]) => [key, numeric(value)]));
      const changed = Object.fromEntries(Object.entries(numbers).filter(([key, value]) => value !== limits[key]));
      await (quota ? send("PATCH", ["quotas", kind, name], changed) : send("PUT", ["quotas", kind, name], numbers));
      return `The quota of ${kind} ${name} is set.`;
    },
  }), label);
}

export function deleteQuota(may, { kind, name }) {
  return may.has("admin") && button("Delete …", () => ask({
    title: `Delete the quota of ${kind} ${name}`,
    button: "Delete the quota",
    act: async () => {
      await send("DELETE", ["quotas", kind, name]);
      return `The quota of ${kind} ${name} is deleted.`;
    },
  }), `delete the quota of ${kind} ${name}`);
}

export function dropStream(may, stream) {
  return may.has("admin") && button("Drop the stream …", () => ask({
    title: `Drop the stream ${stream.name}`,
    text: ["The broker forgets its position, and retention does not wait for it any more.",
      "If it still runs, its next report creates it again."],
    button: "Drop the stream",
    act: async () => {
      await send("DELETE", ["streams", stream.name]);
      location.hash = "#/streams";
      return `The stream ${stream.name} is dropped.`;
    },
  }));
}

export function setClock(may, clock) {
  return may.has("admin") && button("Set broker time …", () => ask({
    title: "Set broker time to the wall clock",
    text: [`Broker time is ${clock.time}, the wall clock ${clock.wall_time}. The broker trusts the wall clock from then on.`,
      "Times that the broker gave before may lie in the future afterwards."],
    button: "Set broker time",
    act: async () => {
      await send("POST", ["clock", "set"]);
      return "Broker time is set.";
    },
  }));
}
