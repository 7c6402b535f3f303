/* Charts of the overview and of a group: samples of the last minutes, drawn as SVG. */

import { poll } from "./api.js";
import { bytes, element, number, seconds } from "./dom.js";

const SAMPLES = 90;
const [WIDTH, HEIGHT] = [300, 80];
const SPACE = "http://www.w3.org/2000/svg";

const sum = (values) => values.reduce((total, one) => total + one, 0);
const count = (value) => typeof value === "object" && value !== null ? sum(Object.values(value)) : value ?? 0;
const milliseconds = (value) => `${value.toFixed(value < 10 ? 2 : 0)} ms`;
const everyRequest = (status) => Object.values(status.request_times ?? {}).flatMap((times) => Object.values(times));

const CHARTS = [
  { title: "records a second", unit: number, lines: {
    produced: rate((status) => count(status.records_produced)),
    leased: rate((status) => count(status.leases_granted)),
    settled: rate((status) => count(status.settled)),
  } },
  { title: "mean time", unit: milliseconds, lines: {
    request: mean(everyRequest),
    commit: mean((status) => [status.wal?.commit_times]),
    loop: mean((status) => [status.loop_lag]),
  } },
  { title: "records in groups", unit: number, lines: {
    lag: (before, now) => sum((now.groups ?? []).map((group) => group.lag)),
    leased: (before, now) => sum((now.groups ?? []).map((group) => group.leased)),
    dead: (before, now) => sum((now.groups ?? []).map((group) => group.dead)),
  } },
  { title: "disk", unit: bytes, lines: {
    journal: (before, now) => now.wal?.bytes ?? 0,
    archive: (before, now) => now.archive?.bytes ?? 0,
    behind: (before, now) => now.archive?.behind_bytes ?? 0,
  } },
];

function rate(total) {
  return (before, now) => (total(now) - total(before)) / (now.uptime_seconds - before.uptime_seconds);
}

/* Returns the mean of the times that histograms counted between two statuses, in milliseconds. */
function mean(histograms) {
  const totals = (status) => {
    const known = histograms(status).filter(Boolean);
    return [sum(known.map((one) => sum(one.counts))), sum(known.map((one) => one.sum))];
  };
  return (before, now) => {
    const [[countBefore, sumBefore], [countNow, sumNow]] = [totals(before), totals(now)];
    return countNow > countBefore ? 1000 * (sumNow - sumBefore) / (countNow - countBefore) : 0;
  };
}

class Chart {
  constructor({ title, unit, lines, samples = SAMPLES }) {
    this.unit = unit;
    this.samples = samples;
    this.svg = document.createElementNS(SPACE, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", `${title}: no sample yet`);
    this.title = title;
    this.most = element("p", { className: "total" });
    const legend = element("p", { className: "legend" });
    this.lines = Object.entries(lines).map(([name, measure], index) => {
      const path = document.createElementNS(SPACE, "polyline");
      path.setAttribute("class", `line line-${index}`);
      this.svg.append(path);
      const shown = element("span", { className: `mark line-${index}` });
      legend.append(shown);
      return { name, measure, path, shown, values: [] };
    });
    this.article = element("article", {}, element("h2", {}, title), this.svg, legend, this.most);
  }

  add(before, now) {
    for (const line of this.lines) {
      line.values.push(line.measure(before, now));
      if (line.values.length > this.samples) { line.values.shift(); }
    }
    const most = Math.max(...this.lines.flatMap((line) => line.values));
    for (const line of this.lines) {
      line.path.setAttribute("points", line.values.map((value, index) => {
        const x = WIDTH * (this.samples - line.values.length + index) / (this.samples - 1);
        return `${x.toFixed(1)},${(HEIGHT - 2 - (HEIGHT - 4) * (most ? value / most : 0)).toFixed(1)}`;
      }).join(" "));
      line.shown.textContent = `${line.name} ${this.unit(line.values.at(-1))}`;
    }
    this.most.textContent = `at most ${this.unit(most)} in ${this.lines[0].values.length} samples`;
    this.svg.setAttribute("aria-label", `${this.title}: ${this.lines.map((line) => line.shown.textContent).join(", ")}`);
  }
}

/* Draw the charts into `place`, and a new sample with each status that page.js fetches. */
export function drawCharts(place) {
  let charts = [];
  let before = null;
  document.addEventListener("brokerd-status", ({ detail: now }) => {
    if (typeof now.uptime_seconds !== "number") { return; }
    if (before === null || now.uptime_seconds < before.uptime_seconds) {
      charts = CHARTS.map((definition) => new Chart(definition));
      place.replaceChildren(...charts.map((chart) => chart.article));
    } else if (now.uptime_seconds > before.uptime_seconds) {
      charts.forEach((chart) => chart.add(before, now));
    }
    before = now;
  });
}

/* -- a group ------------------------------------------------------------------------------------ */

const GROUP_MS = 2000;
const GROUP_SAMPLES = 450; // 15 minutes
const GROUP_CHARTS = [
  { title: "records of the group", unit: number, samples: GROUP_SAMPLES, lines: {
    lag: (before, now) => now.lag,
    leased: (before, now) => now.leased,
    dead: (before, now) => now.dead,
  } },
  { title: "age of the oldest unsettled record", unit: seconds, samples: GROUP_SAMPLES, lines: {
    age: (before, now) => now.oldest_age_seconds ?? 0,
  } },
];
let last = null; // the charts of the group that was shown last

/* Returns the charts of a group, whose description is the first sample. They get a sample every 2 seconds while they
   show. A view of the same group that follows at once, for example after a change, goes on with them. */
export function groupCharts(path, first) {
  const name = JSON.stringify(path);
  if (last === null || last.name !== name || Date.now() - last.at > 2 * GROUP_MS) {
    last = { name, charts: GROUP_CHARTS.map((definition) => new Chart(definition)) };
  }
  const { charts } = last;
  const place = element("section", { className: "charts" }, ...charts.map((chart) => chart.article));
  place.setAttribute("aria-label", "charts of the group");
  const add = (now) => {
    charts.forEach((chart) => chart.add(null, now));
    last.at = Date.now();
  };
  add(first);
  async function sample() {
    if (!place.isConnected) { return; }
    try {
      const now = await poll(path);
      if (place.isConnected) { add(now); }
    } catch (error) {
      charts.forEach((chart) => { chart.most.textContent = `no sample: ${error.message}`; });
    }
    setTimeout(sample, GROUP_MS);
  }
  setTimeout(sample, GROUP_MS);
  return place;
}
