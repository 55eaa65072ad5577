// Keeps an open page current by server-sent events. Inserts only HTML that the hub has rendered and escaped.
"use strict";

const byId = (id) => document.getElementById(id);
const setLive = (text) => { const live = byId("live"); if (live.textContent !== text) live.textContent = text; };
const now = () => new Date().toISOString().slice(11, 19) + " UTC";
const REDRAW = 300000;  // milliseconds; drawings of the last hours end at the present
let reloading = false;
const waiting = new Set();  // ids of parts to load next
let secondReload = 0;
let typing = 0;
let lostText = "";  // shown while the connection is lost
let gone = "";  // shown when the page's Service or cluster was deleted

const showState = () => setLive(lostText || gone || `live, as of ${now()}`);

function parsed(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
}

// Replaces an element by a fresh one. Opened details stay open, and the focus stays on the same link or field.
function put(fresh, old) {
  const active = old.contains(document.activeElement) ? document.activeElement : null;
  const open = [...old.querySelectorAll("details[open]")].map((details) => details.id);
  old.replaceWith(fresh);
  for (const id of open) { const details = byId(id); if (details) details.open = true; }
  if (!active) return;
  const same = active.id ? byId(active.id) : [...fresh.querySelectorAll("a")].find((link) => link.href === active.href);
  if (same) same.focus();
}

function putPart(id, html) {
  if (id === "map" && location.search) { reload(["map"]); return; }  // the event has the map of all, not of the search
  const fresh = parsed(html);
  const old = byId(id);
  fresh.classList.add("changed");
  if (old) { put(fresh, old); return; }
  const table = byId(id.startsWith("cluster:") ? "clusters" : id.startsWith("service:") ? "services" : "");
  if (!table) return;
  const sorted = table.id === "services";
  const next = sorted ? [...table.rows].find((row) => row.dataset.key > fresh.dataset.key) : null;
  table.insertBefore(fresh, next || null);
}

// Loads the page again and replaces parts of the shown one.
async function reload(parts = ["replica", "main"]) {
  for (const id of parts) waiting.add(id);
  if (reloading) return;
  reloading = true;
  const wanted = [...waiting];
  waiting.clear();
  try {
    const answer = await fetch(location.href, { cache: "no-cache" });
    if (answer.status === 404) { gone = gone || `deleted, showing the state of ${now()}`; showState(); return; }
    if (!answer.ok) { setLive(`cannot be loaded (${answer.status}), as of ${now()}`); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    // The search is taken from the shown page, as it may have changed meanwhile.
    const form = byId("search");
    for (const id of wanted) { const old = byId(id); if (old) put(page.getElementById(id), old); }
    if (form && byId("search") !== form) put(form, byId("search"));
    filter();
    gone = "";
    showState();
  } catch {
    setLive(`server not reached, as of ${now()}`);
  } finally {
    reloading = false;
    if (waiting.size) setTimeout(() => reload([]), 1000);
  }
}

function filter() {
  const form = byId("search");
  if (!form) return;
  const text = form.q.value.trim().toLowerCase();
  for (const row of document.querySelectorAll("table.rows tbody tr")) {
    const problem = row.dataset.kind === "bad" || row.dataset.kind === "warn";
    row.hidden = !row.dataset.key.includes(text) || (form.problems.checked && !problem);
    const folded = row.closest("details");
    if (folded && !row.hidden && (text || form.problems.checked)) folded.open = true;
  }
}

// Filters the rows at once, and writes the search into the address. The server draws the map.
function search(event) {
  if (event.type === "submit") event.preventDefault();
  filter();
  const form = byId("search");
  const query = new URLSearchParams();
  if (form.q.value.trim()) query.set("q", form.q.value.trim());
  if (form.problems.checked) query.set("problems", "1");
  history.replaceState(null, "", String(query) ? `/?${query}` : "/");
  clearTimeout(typing);
  typing = setTimeout(() => reload(["map"]), 300);
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
  events.addEventListener("reload", () => setTimeout(() => reload(), 500 + Math.random() * 3000));
  events.onerror = () => {
    lostText = lostText || `connection lost, showing the state of ${now()}`;
    showState();
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 15000 + Math.random() * 15000);
  };
}

function changed(change) {
  for (const [id, html] of Object.entries(change.html)) putPart(id, html);
  for (const id of change.gone) { const row = byId(id); if (row) row.remove(); }
  byId("main").dataset.version = change.version;
  filter();
  if (concerns(change)) {
    reload();
    // The answer may be a second old, so reload once more after that second.
    clearTimeout(secondReload);
    secondReload = setTimeout(() => reload(), 1500);
  }
  showState();
}

connect();
const form = byId("search");
if (form) for (const name of ["input", "submit"]) form.addEventListener(name, search);
setInterval(() => { if (!document.hidden) reload(); }, REDRAW);
