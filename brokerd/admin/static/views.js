/* The views below the navigation: each returns the nodes of one address. */

import * as actions from "./actions.js";
import { get, getExactly, permissions } from "./api.js";
import { groupCharts } from "./charts.js";
import { buttons } from "./dialogs.js";
import { address, block, bytes, element, facts, key, link, number, seconds, section, table, value } from "./dom.js";
import { field, form, paged, pages } from "./lists.js";

const ROWS = 100;
const SEARCH_REQUESTS = 10;
const SEARCH_LIMIT = 1000;
const MATCHES = 100;
const AUDIT_ROWS = 200;
const sum = (values) => values.reduce((total, one) => total + one, 0);
const setting = (shown, given) => given === null ? "default of the broker" : given === 0 ? "no limit" : shown(given);

export async function topics(parts, query) {
  const first = Number(query.get("first") ?? 0);
  const [page, may] = await Promise.all([get(["topics"], { first, limit: ROWS }), permissions()]);
  const [name, label] = field("topic", { required: true });
  const rows = page.topics.map((topic) => [
    link(topic.name, "topics", topic.name), number(topic.next_offsets.length),
    number(sum(topic.next_offsets) - sum(topic.start_offsets)), number(topic.groups),
    setting(seconds, topic.settings.retention_seconds), setting(bytes, topic.settings.retention_bytes)]);
  return [
    form(() => { location.hash = address("topics", name.value); }, label, element("button", {}, "Open")),
    buttons(actions.createTopic(may)),
    section("Topics, by creation",
      table("topics", ["topic", "#partitions", "#offsets", "#groups", "#retention by age", "#by size"], rows),
      pages(["topics"], "first", first, page.next))];
}

export async function topic([, name], query) {
  const [found, groups, may] = await Promise.all([
    get(["topics", name]),
    get(["topics", name, "groups"], { limit: ROWS }).catch((error) => ({ error: error.message })),
    permissions(name)]);
  const { settings } = found;
  const partitions = found.start_offsets.slice(0, SEARCH_LIMIT).map((start, index) =>
    [number(index), number(start), number(found.next_offsets[index]), number(found.next_offsets[index] - start)]);
  return [
    element("h2", { className: "name" }, `Topic ${name}`),
    facts([
      ["topic id", number(found.topic_id)], ["partitions", number(found.next_offsets.length)],
      ["retention by age", setting(seconds, settings.retention_seconds)],
      ["retention by size", setting(bytes, settings.retention_bytes)],
      ["time to live", setting(seconds, settings.ttl_seconds)],
      ["compaction", settings.compact ? "yes" : "no"]]),
    buttons(actions.configureTopic(may, found), actions.deleteTopic(may, found)),
    section("Groups", groups.error ? element("p", { className: "none" }, groups.error) : groupTable(name, groups.groups)),
    section("Records", ...browser(name, query)),
    section("Delayed messages", ...delayed(name, may)),
    section("Partitions", table("partitions", ["#partition", "#start offset", "#next offset", "#offsets"], partitions)),
  ];
}

function delayed(name, may) {
  const headings = ["#id", "due", "#partition", "#size", "key", "beginning of the value", ""];
  const { show, nodes } = paged("delayed messages", headings, async (from) => {
    const page = await get(["topics", name, "scheduled"], { first_id: from, limit: ROWS });
    const rows = page.scheduled.map((one) => [number(one.schedule_id), one.due, number(one.partition),
      one.bytes === null ? "–" : bytes(one.bytes), one.key, one.preview,
      actions.cancelDelayed(may, name, one.schedule_id)]);
    return { rows, next: page.next_id };
  });
  show(null);
  return nodes;
}

function groupTable(topicName, groups) {
  return table("groups", ["topic", "group", "#lag", "#leased", "#delayed", "#dead", "#committed", "state"],
    groups.map((group) => [
      link(group.topic ?? topicName, "topics", group.topic ?? topicName),
      link(group.group, "topics", group.topic ?? topicName, "groups", group.group), number(group.lag),
      number(group.leased), number(group.delayed), number(group.dead), number(group.committed),
      group.paused ? "paused" : "running"]));
}

const viewOfAddress = () => location.hash.split("?")[0];

/* Reads at once if the address has an offset; after each reading, the address has it. An answer that comes after
   another reading, or when the address is that of another view, is dropped. */
function browser(name, query) {
  const [partition, partitionLabel] = field("partition", { type: "number", min: 0, value: query.get("partition") ?? 0, required: true });
  const [offset, offsetLabel] = field("from offset", { type: "number", min: 0, value: query.get("offset") ?? 0, required: true });
  const [time, timeLabel] = field("or from time (UTC)", { type: "datetime-local" });
  const [text, textLabel] = field("key or value contains", { value: query.get("text") ?? "" });
  const [asHex, hexLabel] = field("hex", { type: "checkbox", checked: query.has("hex") });
  const shown = element("div", {});
  const note = element("p", { className: "total" });
  note.setAttribute("role", "status");
  let [readings, view] = [0, viewOfAddress()];
  const act = async () => {
    readings += 1;
    const reading = readings;
    const isOver = () => reading !== readings || viewOfAddress() !== view;
    const place = { partition: partition.value, offset: offset.value, text: text.value };
    if (asHex.checked) { place.hex = "yes"; }
    note.textContent = "reading …";
    try {
      place.offset = time.value ? await offsetAt(name, place.partition, time.value) : Number(place.offset);
      const from = place.offset;
      const { records, end, damage } = await search(name, place.partition, from, place.text);
      if (isOver()) { return; }
      note.textContent = `offsets ${number(from)} to ${number(end)} (exclusive): ${number(records.length)} records shown`
        + (damage ? `; ${damage}` : "");
      history.replaceState(null, "", `${address("topics", name)}?${new URLSearchParams(place)}`);
      view = viewOfAddress();
      offset.value = end;
      time.value = "";
      shown.replaceChildren(recordTable(records, "hex" in place));
    } catch (error) {
      if (!isOver()) { note.textContent = error.message; }
    }
  };
  if (query.has("offset")) { act(); }
  return [
    form(act, partitionLabel, offsetLabel, timeLabel, textLabel, hexLabel, element("button", {}, "Read")), note, shown];
}

async function offsetAt(name, partition, time) {
  const found = await get(["topics", name, "offset"], { partition, time: new Date(`${time}Z`).toISOString() });
  return found.offset;
}

/* Reads one page; with `text`, pages until enough records match or the bound on requests is reached. */
async function search(name, partition, from, text) {
  const records = [];
  let [end, damage] = [from, null];
  for (let request = 0; request < (text ? SEARCH_REQUESTS : 1); request += 1) {
    const page = await getExactly(["topics", name, "records"],
      { partition, offset: end, limit: text ? SEARCH_LIMIT : ROWS, bytes_max: 1 << 20 });
    damage = page.damage ?? damage;
    const isEnd = page.next_offset === end;
    end = page.next_offset;
    for (const record of page.records) {
      if (text && !(key(record) ?? "").includes(text) && !value(record, false).includes(text)) { continue; }
      records.push(record);
      if (records.length === MATCHES) { return { records, end: record.offset + 1, damage }; }
    }
    if (isEnd) { break; }
  }
  return { records, end, damage };
}

function recordTable(records, asHex) {
  return table("records", ["#offset", "key", "value", "append time", "format", "encoding"], records.map((record) => [
    number(record.offset), key(record), block(value(record, asHex)),
    record.append_time, record.format ?? "admin API", record.encoding]));
}

export async function groups(parts, query) {
  const first = Number(query.get("first") ?? 0);
  const page = await get(["groups"], { first, limit: ROWS });
  return [section("Groups, by topic", groupTable("", page.groups), pages(["groups"], "first", first, page.next))];
}

export async function group([, topicName, , name]) {
  const path = ["topics", topicName, "groups", name];
  const [found, may] = await Promise.all([get(path), permissions(topicName)]);
  return [
    element("h2", { className: "name" }, `Group ${name} of topic `, link(topicName, "topics", topicName)),
    facts([
      ["state", found.paused ? "paused" : "running"], ["lag", number(found.lag)],
      ["age of the oldest unsettled record", seconds(found.oldest_age_seconds)],
      ["ready", number(found.ready)], ["leased", number(found.leased)], ["delayed", number(found.delayed)],
      ["dead letters", number(found.dead)],
      ["max attempts", `${number(found.settings.max_attempts)} ${found.settings.attempts}`],
      ["back-off", `${seconds(found.settings.backoff_base_seconds)} to ${seconds(found.settings.backoff_max_seconds)}`],
      ["lease", seconds(found.settings.default_duration_seconds)],
      ["key order", found.settings.key_ordered ? "yes" : "no"]]),
    buttons(actions.pauseGroup(may, path, found), actions.seekGroup(may, path, found),
      actions.configureGroup(may, path, found), actions.deleteGroup(may, path, found)),
    groupCharts(path, found),
    section("Partitions", table("partitions of the group",
      ["#partition", "#floor", "#next", "#lag", "#leased", "#delayed", "#dead", "#committed"],
      found.by_partition.map((one) => [one.partition, one.floor, one.next, one.lag, one.leased, one.delayed,
        one.dead, one.committed].map(number)))),
    section("Leases", ...leases(path, may)),
    section("Dead letters", ...letters(path, may))];
}

const record = (topicName, { partition, offset }) => element("a",
  { href: `${address("topics", topicName)}?${new URLSearchParams({ partition, offset })}` }, number(offset));

function leases(path, may) {
  const headings = ["#partition", "#offset", "client", "#grants", "#failures", "#remaining", ""];
  const { show, nodes } = paged("leases", headings, async (from) => {
    const page = await get([...path, "leases"], { ...from, limit: ROWS });
    const rows = page.leases.map((one) => [number(one.partition), record(path[1], one), one.client,
      number(one.grants), number(one.failures), seconds(one.remaining_seconds), actions.releaseLease(may, path, one)]);
    return { rows, next: page.next };
  });
  show(null);
  return nodes;
}

function letters(path, may) {
  const [reason, reasonLabel] = field("reason", { placeholder: "any" });
  const change = element("div", {});
  const headings = ["#partition", "#offset", "reason", "#grants", "#failures", "last attempt"];
  const { show, nodes } = paged("dead letters", headings, async (from) => {
    const chosen = reason.value;
    const page = await get([...path, "dead-letters"], { ...from, limit: ROWS, reason: chosen });
    const reasons = [...new Set(page.dead_letters.map((one) => one.reason))];
    const shown = () => change.replaceChildren(buttons(actions.replayLetters(may, path, chosen, reasons),
      actions.purgeLetters(may, path, chosen, reasons)));
    const rows = page.dead_letters.map((one) => [number(one.partition), record(path[1], one), one.reason,
      number(one.grants), number(one.failures), one.last_attempt]);
    return { rows, next: page.next, shown };
  });
  show(null);
  return [form(() => show(null), reasonLabel, element("button", {}, "Show")), change, ...nodes];
}

export async function connections(parts, query) {
  const first = Number(query.get("first_id") ?? 0);
  const [page, may] = await Promise.all([get(["connections"], { first_id: first, limit: ROWS }), permissions()]);
  const rows = page.connections.map((one) => [
    number(one.id), one.format, one.port === null ? one.address : `${one.address} port ${one.port}`,
    one.user || "anonymous", one.tls ? "yes" : "no", seconds(one.open_seconds), seconds(one.idle_seconds),
    number(one.requests), bytes(one.unread_bytes), one.holds.join(", "), actions.closeConnection(may, one)]);
  return [section("Connections, oldest first",
    table("connections", ["#id", "format", "address", "account", "TLS", "#open", "#idle", "#requests", "#unread", "waits for", ""], rows),
    pages(["connections"], "first_id", first, page.next))];
}

export async function archive() {
  const found = await get(["archive"]);
  return [section("Archive", facts(Object.entries(found).flatMap(([name, content]) =>
    content !== null && typeof content === "object"
      ? Object.entries(content).map(([part, inner]) => [`${name}, ${part}`, String(inner ?? "–")])
      : [[name, String(content ?? "–")]]).map(([name, content]) => [name.replaceAll("_", " "), content || "–"])))];
}

export async function audit(parts, query) {
  const search = query.get("search") ?? "";
  const [text, label] = field("text", { value: search });
  const page = await get(["audit"], { limit: AUDIT_ROWS, before: query.get("before"), search });
  const next = new URLSearchParams({ search, before: page.next });
  return [
    form(() => { location.hash = `${address("audit")}?${new URLSearchParams({ search: text.value })}`; },
      label, element("button", {}, "Search")),
    section("Audit events, newest first", table("audit events",
      ["time", "type", "account", "address", "format", "resource", "action", "result", "details"],
      page.events.map((one) => [one.time, one.type, one.user, one.client_ip, one.format, one.resource, one.action,
        one.result, Object.entries(one.details).map((pair) => pair.join(": ")).join("; ")])),
    element("p", { className: "pages" },
      page.unreadable ? `${number(page.unreadable)} events are lost to damage` : "",
      page.next === null ? "" : element("a", { href: `${address("audit")}?${next}` }, "older events")))];
}

export async function quotas(parts, query) {
  const first = Number(query.get("first") ?? 0);
  const [page, may] = await Promise.all([get(["quotas"], { first, limit: ROWS }), permissions()]);
  const lines = (first, second) =>
    element("div", { className: "fold" }, first, ...second ? [element("br"), second] : []);
  const limit = (shown, most, used, when = "so far") =>
    lines(most === 0 ? "no limit" : shown(most), `${shown(used)} ${when}`);
  const rows = page.quotas.map(({ kind, name, limits, use, unknown_account }) => [
    kind, lines(name, unknown_account && "no account"), limit(number, limits.requests, use.requests),
    limit(bytes, limits.bytes_in, use.bytes_in), limit(bytes, limits.bytes_out, use.bytes_out),
    limit(number, limits.connections, use.connections, "open"), number(use.waits), number(use.refused),
    element("div", { className: "stacked" },
      buttons(actions.setQuota(may, { kind, name, limits }), actions.deleteQuota(may, { kind, name })))]);
  return [
    buttons(actions.setQuota(may)),
    section("Quotas: limits, of rates a second, and use since the start", table("quotas",
      ["kind", "name", "#requests", "#bytes in", "#bytes out", "#connections", "#waits", "#refused", ""], rows)),
    pages(["quotas"], "first", first, page.next)];
}

export async function transactions(parts, query) {
  const first = Number(query.get("first_number") ?? 0);
  const page = await get(["transactions"], { first_number: first, limit: ROWS });
  const rows = page.transactions.map((one) => [
    number(one.number), number(one.records), bytes(one.held_bytes), seconds(one.seconds_left),
    one.commit_waits ? "its commit waits for room in the journal" : "open",
    one.topics.join(", ") + (one.topics_count > one.topics.length ? ` and ${number(one.topics_count - one.topics.length)} more` : "")]);
  return [
    section("Transactions", facts([
      ["open", number(page.open)], ["memory of all", `${bytes(page.held_bytes)} of ${bytes(page.held_bytes_max)}`],
      ["committed since the start", number(page.committed)], ["rolled back", number(page.rolled_back)],
      ["timed out", number(page.timed_out)]])),
    section("Open transactions, oldest first",
      table("open transactions", ["#number", "#records", "#memory", "#time left", "state", "topics"], rows)),
    pages(["transactions"], "first_number", first, page.next_number)];
}

const held = (stream) => stream.hold_dropped ? `dropped: ${stream.hold_dropped}` : stream.holds ? "yes" : "no";
const counted = (shown, lag) => lag === null ? "not counted yet" : shown(lag);
const selection = (stream) => stream.topics === null ? "all" : stream.topics.join(", ");

export async function streams(parts, query) {
  const first = Number(query.get("first") ?? 0);
  const page = await get(["streams"], { first, limit: ROWS });
  const rows = page.streams.map((one) => [
    link(one.name, "streams", one.name), counted(number, one.lag_records), counted(bytes, one.lag_bytes),
    seconds(one.silent_seconds), held(one), one.owner, selection(one)]);
  return [
    section("Named streams, by name", table("streams",
      ["stream", "#lag", "#lag in the journal", "#since the last report", "holds retention", "account", "topics"], rows)),
    pages(["streams"], "first", first, page.next)];
}

export async function stream([, name]) {
  const [found, may] = await Promise.all([get(["streams", name]), permissions()]);
  const rows = found.positions.flatMap((place) => place.offsets.map((offset, partition) => [
    link(place.topic, "topics", place.topic), number(partition), number(offset), number(place.next_offsets[partition]),
    number(Math.max(0, place.next_offsets[partition] - offset))]));
  return [
    element("h2", { className: "name" }, `Stream ${name}`),
    facts([
      ["lag", counted(number, found.lag_records)], ["lag in the journal", counted(bytes, found.lag_bytes)],
      ["position in the journal", number(found.lsn)], ["last report", found.reported], ["first report", found.created],
      ["holds retention", held(found)], ["account", found.owner], ["topics", selection(found)]]),
    buttons(actions.dropStream(may, found)),
    section("Positions", table("positions", ["topic", "#partition", "#next offset", "#end", "#behind"],
      rows.slice(0, SEARCH_LIMIT)))];
}

export async function clock() {
  const [found, may] = await Promise.all([get(["clock"]), permissions()]);
  return [
    section("Clocks", facts([
      ["broker time", found.time], ["wall clock", found.wall_time], ["time of removals", found.removal_time],
      ["skew: broker time less wall clock", seconds(found.skew_seconds)],
      ["ahead: broker time less time of removals", seconds(found.ahead_seconds)],
      ["broker time is trusted", found.degraded === "" ? "yes" : `no: ${found.degraded}`]])),
    buttons(actions.setClock(may, found))];
}

const ORIGINS = ["file", "environment", "option"];
const given = (content) => Array.isArray(content) ? content.join(", ") : String(content);

export async function configuration(parts, query) {
  const { options } = await get(["configuration"]);
  const text = query.get("text") ?? "";
  const isChosen = ({ name, origin }) => name.includes(text) && (!query.has("given") || ORIGINS.includes(origin));
  const [input, label] = field("option contains", { value: text });
  const [only, onlyLabel] = field("without defaults", { type: "checkbox", checked: query.has("given") });
  const rows = options.filter(isChosen).map((one) => [
    one.name, given(one.value), one.source || "default", given(one.default ?? "–"),
    one.restart_needed ? "restart needed for another value" : one.reloadable ? "reload" : "restart"]);
  return [
    form(() => {
      const wanted = new URLSearchParams({ text: input.value });
      if (only.checked) { wanted.set("given", "yes"); }
      location.hash = `${address("configuration")}?${wanted}`;
    }, label, onlyLabel, element("button", {}, "Show")),
    section("Configuration in use", table("configuration", ["option", "value", "from", "default", "a change needs"], rows))];
}
