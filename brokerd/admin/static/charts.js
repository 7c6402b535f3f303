/* Charts of the overview: the last minutes of the status, drawn as SVG. */

import { bytes, element, number } from "./dom.js";

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
  constructor({ title, unit, lines }) {
    this.unit = unit;
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
      if (line.values.length > SAMPLES) { line.values.shift(); }
    }
    const most = Math.max(...this.lines.flatMap((line) => line.values));
    for (const line of this.lines) {
      line.path.setAttribute("points", line.values.map((value, index) => {
        const x = WIDTH * (SAMPLES - line.values.length + index) / (SAMPLES - 1);
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
