// Keeps an open page current by server-sent events. What it inserts was rendered, and escaped, by the hub.
"use strict";

const byId = (id) => document.getElementById(id);
const say = (text) => { const live = byId("live"); if (live.textContent !== text) live.textContent = text; };
const now = () => new Date().toISOString().slice(11, 19) + " UTC";
let reloading = false;
let again = false;
let later = 0;
let lost = "";  // what is said while there is no connection
let gone = "";  // what is said of a page whose Service or cluster is no more

const tell = () => say(lost || gone || `live, as of ${now()}`);

function parsed(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
}

function put(id, html) {
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

// The page as it is now, in the place of the one that is shown; what was opened stays open.
async function reload() {
  if (reloading) { again = true; return; }
  reloading = true;
  try {
    const answer = await fetch(location.href, { cache: "no-cache" });
    if (answer.status === 404) { gone = gone || `gone, shown is what was at ${now()}`; tell(); return; }
    if (!answer.ok) { say(`cannot be read (${answer.status}), as of ${now()}`); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = [...document.querySelectorAll("details[open]")].map((each) => each.id);
    const kept = ["filter", "worse"].map((id) => byId(id));
    for (const id of ["replica", "main"]) byId(id).replaceWith(page.getElementById(id));
    for (const id of open) { const each = byId(id); if (each) each.open = true; }
    kept.forEach((old) => { const fresh = old && byId(old.id); if (fresh) { fresh.value = old.value; fresh.checked = old.checked; } });
    filter();
    gone = "";
    tell();
  } catch {
    say(`not reached, as of ${now()}`);
  } finally {
    reloading = false;
    if (again) { again = false; setTimeout(reload, 1000); }
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

// Whether the page of a Service or of a cluster is outdated. What was touched is null where that is too much to tell.
function concerns({ touched, clusters, gone }) {
  const shown = byId("main").dataset;
  if (!shown.service && !shown.clusters) return false;
  const names = shown.clusters.split(" ");
  if (touched === null || clusters.some((each) => names.includes(each))) return true;
  if (!shown.service) return touched.length + gone.length > 0;
  const ids = [`service:${shown.service}`, ...names.map((each) => `cluster:${each}`)];
  return touched.includes(shown.service) || gone.some((each) => ids.includes(each));
}

// The browser comes back by itself after a lost connection. After an answer that is no stream (too many pages are open, say)
// it does not: this does, in its own time, since the Retry-After of that answer is told to nobody.
function connect() {
  const events = new EventSource("/events");
  events.addEventListener("hello", (event) => {
    lost = "";
    if (JSON.parse(event.data).version !== byId("main").dataset.version) reload();
    else tell();
  });
  events.addEventListener("change", (event) => changed(JSON.parse(event.data)));
  // Not all at once: everybody who reads this page reads it anew.
  events.addEventListener("reload", () => setTimeout(reload, 500 + Math.random() * 3000));
  events.onerror = () => {
    lost = lost || `connection lost, shown is what was at ${now()}`;
    tell();
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 15000 + Math.random() * 15000);
  };
}

function changed(change) {
  for (const [id, html] of Object.entries(change.html)) put(id, html);
  for (const id of change.gone) { const row = byId(id); if (row) row.remove(); }
  byId("main").dataset.version = change.version;
  filter();
  if (concerns(change)) {
    reload();
    // An answer may be a second old: once more, when it is over.
    clearTimeout(later);
    later = setTimeout(reload, 1500);
  }
  tell();
}

connect();
filter();
