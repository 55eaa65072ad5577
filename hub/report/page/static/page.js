// Keeps an open page current by server-sent events. Inserts only HTML that the hub has rendered and escaped.
"use strict";

const byId = (id) => document.getElementById(id);
const setLive = (text) => { const live = byId("live"); if (live.textContent !== text) live.textContent = text; };
const now = () => new Date().toISOString().slice(11, 19) + " UTC";
let reloading = false;
let reloadAgain = false;
let secondReload = 0;
let lostText = "";  // shown while the connection is lost
let gone = "";  // shown when the page's Service or cluster was deleted

const showState = () => setLive(lostText || gone || `live, as of ${now()}`);

function parsed(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
}

function putRow(id, html) {
  const fresh = parsed(html);
  const old = byId(id);
  fresh.classList.add("changed");
  if (old) {
    const focused = old.contains(document.activeElement);
    old.replaceWith(fresh);
    if (focused) { const link = fresh.querySelector("a"); if (link) link.focus(); }
    return;
  }
  const table = byId(id.startsWith("cluster:") ? "clusters" : id.startsWith("service:") ? "services" : "");
  if (!table) return;
  const sorted = table.id === "services";
  const next = sorted ? [...table.rows].find((row) => row.dataset.key > fresh.dataset.key) : null;
  table.insertBefore(fresh, next || null);
}

// Loads the page again and replaces the shown one; opened details stay open.
async function reload() {
  if (reloading) { reloadAgain = true; return; }
  reloading = true;
  try {
    const answer = await fetch(location.href, { cache: "no-cache" });
    if (answer.status === 404) { gone = gone || `deleted, showing the state of ${now()}`; showState(); return; }
    if (!answer.ok) { setLive(`cannot be loaded (${answer.status}), as of ${now()}`); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = [...document.querySelectorAll("details[open]")].map((details) => details.id);
    const kept = ["filter", "worse"].map((id) => byId(id));
    for (const id of ["replica", "main"]) byId(id).replaceWith(page.getElementById(id));
    for (const id of open) { const details = byId(id); if (details) details.open = true; }
    kept.forEach((old) => { const fresh = old && byId(old.id); if (fresh) { fresh.value = old.value; fresh.checked = old.checked; } });
    filter();
    gone = "";
    showState();
  } catch {
    setLive(`server not reached, as of ${now()}`);
  } finally {
    reloading = false;
    if (reloadAgain) { reloadAgain = false; setTimeout(reload, 1000); }
  }
}

function filter() {
  const field = byId("filter");
  if (!field) return;
  field.closest("p").hidden = false;
  field.oninput = byId("worse").onchange = filter;
  for (const row of document.querySelectorAll("table.rows tbody tr")) {
    const named = row.dataset.key.includes(field.value.trim());
    row.hidden = !named || (byId("worse").checked && row.dataset.kind === "good");
  }
}

// Whether the page of a Service or of a cluster is outdated. `touched` is null when too many Services changed to list them.
function concerns({ touched, clusters, gone }) {
  const shown = byId("main").dataset;
  if (!shown.service && !shown.clusters) return false;
  const names = shown.clusters.split(" ");
  if (touched === null || clusters.some((name) => names.includes(name))) return true;
  if (!shown.service) return touched.length + gone.length > 0;
  const ids = [`service:${shown.service}`, ...names.map((name) => `cluster:${name}`)];
  return touched.includes(shown.service) || gone.some((id) => ids.includes(id));
}

// The browser reconnects after a lost connection, but not after an answer that is not a stream, such as 503 for too many open
// pages. Then this function reconnects, after a time of its own, since scripts cannot see that answer's Retry-After.
function connect() {
  const events = new EventSource("/events");
  events.addEventListener("hello", (event) => {
    lostText = "";
    if (JSON.parse(event.data).version !== byId("main").dataset.version) reload();
    else showState();
  });
  events.addEventListener("change", (event) => changed(JSON.parse(event.data)));
  // A random delay, so that open pages do not all reload at once.
  events.addEventListener("reload", () => setTimeout(reload, 500 + Math.random() * 3000));
  events.onerror = () => {
    lostText = lostText || `connection lost, showing the state of ${now()}`;
    showState();
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 15000 + Math.random() * 15000);
  };
}

function changed(change) {
  for (const [id, html] of Object.entries(change.html)) putRow(id, html);
  for (const id of change.gone) { const row = byId(id); if (row) row.remove(); }
  byId("main").dataset.version = change.version;
  filter();
  if (concerns(change)) {
    reload();
    // The answer may be a second old, so reload once more after that second.
    clearTimeout(secondReload);
    secondReload = setTimeout(reload, 1500);
  }
  showState();
}

connect();
filter();
