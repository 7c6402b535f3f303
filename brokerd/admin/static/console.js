/* The console: shows the view of the address after "#" below the navigation. */

import { drawCharts } from "./charts.js";
import { element } from "./dom.js";
import { showLogin } from "./login.js";
import * as schemas from "./schemas.js";
import { security } from "./security.js";
import * as views from "./views.js";

const VIEWS = [
  [/^topics$/, views.topics],
  [/^topics\/[^/]+$/, views.topic],
  [/^topics\/[^/]+\/groups\/[^/]+$/, views.group],
  [/^groups$/, views.groups],
  [/^connections$/, views.connections],
  [/^archive$/, views.archive],
  [/^schemas$/, schemas.schemas],
  [/^schemas\/[^/]+\/[0-9]+$/, schemas.schema],
  [/^security$/, security],
  [/^audit$/, views.audit],
  [/^transactions$/, views.transactions],
  [/^streams$/, views.streams],
  [/^streams\/[^/]+$/, views.stream],
  [/^quotas$/, views.quotas],
  [/^clock$/, views.clock],
  [/^configuration$/, views.configuration],
];
const [overview, view, notice] = ["overview", "view", "notice"].map((id) => document.getElementById(id));
let visits = 0;
let isAsked = false; // to log in
let text = ""; // of the notice that the next view shows

async function nodes(path, query) {
  const found = VIEWS.find(([pattern]) => pattern.test(path));
  try {
    if (!found) { throw new Error("this page does not exist"); }
    return await found[1](path.split("/").map(decodeURIComponent), query);
  } catch (error) {
    const refusal = element("p", { className: "damage" }, error.message);
    refusal.setAttribute("role", "alert");
    return [refusal];
  }
}

async function show(event) {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  visits += 1;
  const visit = visits;
  for (const entry of document.querySelectorAll("nav a")) {
    const isCurrent = path.split("/")[0] === entry.hash.replace(/^#\/?/, "");
    if (isCurrent) { entry.setAttribute("aria-current", "page"); } else { entry.removeAttribute("aria-current"); }
  }
  const made = path === "" || isAsked ? [] : await nodes(path, new URLSearchParams(query));
  if (visit !== visits) { return; }
  [notice.textContent, text] = [text, ""];
  overview.hidden = path !== "" || isAsked;
  view.hidden = path === "" || isAsked;
  view.replaceChildren(...made);
  document.body.dataset.shown = location.hash; // for tests
  if (event) { (path === "" ? overview : view).focus(); }
}

document.addEventListener("brokerd-changed", (event) => {
  [text, notice.textContent] = [event.detail, ""];
  show(event);
});

/* The next account must not see what the last one saw: nothing of the page stays. */
for (const name of ["brokerd-session", "brokerd-refused"]) {
  document.addEventListener(name, () => location.reload());
}
drawCharts(document.getElementById("charts"));
window.addEventListener("hashchange", show);
isAsked = await showLogin();
show();
