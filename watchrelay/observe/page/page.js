// The page: one line of server-sent events from the relay, closed while nobody looks, and what it says spread over cards and rows.

import { paintCards, takeCards } from "./cards.js";
import { takeGroup } from "./replicas.js";
import { Table } from "./rows.js";
import { age, clock, count, now, rate, say, setClock } from "./words.js";

const SILENT_MS = 4000; // the relay says the time every second
const ASK_MS = 10000;
const line = document.getElementById("line");
const find = document.getElementById("find");

let source = null;
let asking = null;
let receivedMs = 0;
let known = null;
let newest = 0; // number of the newest picture that was taken of this process of the relay
let listenMs = 0;
let askedMs = 0;
let polled = ""; // why the page asks instead of listening: "crowded", "silent", or "" while events come
let started = false;

const table = new Table(remember);

// ---- what the relay says ---------------------------------------------------------------------------------------------

function takeAll(picture) {
  if (known && known.version !== picture.relay.version) {
    location.reload(); // another version runs now, and brings a page of its own
    return;
  }
  const sameProcess = known?.instance === picture.relay.instance && known.started === picture.relay.started;
  if (sameProcess && picture.number < newest) return; // held back on the way
  newest = picture.number;
  setClock(picture.at);
  takeRelay(picture.relay);
  takeCards(picture.cards, (stream) => reveal(stream));
  table.takeAll(picture.rows, picture.history);
  const first = !started;
  started = true;
  received();
  if (first) {
    document.getElementById("text").hidden = true;
    document.getElementById("live").hidden = false;
    recall();
  }
}

function takeNews(news) {
  if (news.number <= newest) return;
  newest = news.number;
  setClock(news.at);
  if (news.relay) takeRelay(news.relay);
  if (news.cards) takeCards(news.cards, (stream) => reveal(stream));
  table.take(news.rows ?? [], news.order);
  received();
}

function takeRelay(relay) {
  known = relay;
  table.started = relay.started;
  say(document.getElementById("cluster"), relay.cluster);
  say(document.getElementById("verdict"), relay.headline);
  takeGroup(relay.group);
}

function received() {
  receivedMs = Date.now();
  paint();
}

// ---- the line --------------------------------------------------------------------------------------------------------

function connect() {
  disconnect();
  listenMs = Date.now();
  source = new EventSource("api/events");
  source.addEventListener("all", ({ data }) => receive(takeAll, data));
  source.addEventListener("news", ({ data }) => receive(takeNews, data));
  source.addEventListener("error", () => {
    // The browser connects again by itself unless it was refused: too many look, or a proxy answers in the relay's place.
    if (source?.readyState === EventSource.CLOSED) {
      clearTimeout(asking);
      asking = setTimeout(connect, ASK_MS);
      ask("crowded");
    }
    paint();
  });
}

function receive(take, data) {
  polled = "";
  listenMs = Date.now();
  take(JSON.parse(data));
}

function disconnect() {
  source?.close();
  source = null;
  clearTimeout(asking);
}

/** Without events: ask for the whole now. */
async function ask(why) {
  askedMs = Date.now();
  try {
    const answer = await fetch("api/overview", { cache: "no-store" });
    polled = answer.ok ? why : "";
    if (answer.ok) takeAll(await answer.json());
  } catch {
    polled = "";
  }
  paint();
}

/** A proxy that collects what passes holds the events back: the line is open, and nothing comes. */
function askIfSilent() {
  const now = Date.now();
  if (source && source.readyState !== EventSource.CLOSED && now - listenMs > SILENT_MS && now - askedMs > SILENT_MS) ask("silent");
}

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") connect();
  else {
    disconnect();
    paint();
  }
});

// ---- painting --------------------------------------------------------------------------------------------------------

function paint() {
  const silentMs = Date.now() - receivedMs;
  const lost = silentMs > (polled === "crowded" ? 2 * ASK_MS : polled ? 2 * SILENT_MS : SILENT_MS);
  if (!started) say(line, "connecting…");
  else if (lost) say(line, `No word from the relay since ${clock(now() - silentMs)} (${age(now() - silentMs)}); trying again. What is shown was true then.`);
  else if (polled === "crowded") say(line, "Many look at this relay: fresh every 10 s.");
  else if (polled) say(line, "Events do not come through: fresh every 5 s.");
  else say(line, "live");
  line.dataset.line = !started ? "none" : lost ? "lost" : polled ? "slow" : "live";
  document.body.classList.toggle("stale", started && lost);
  if (!known) return;
  const up = known.started ? `, up ${age(known.started)}` : "";
  say(document.getElementById("about"), `${known.instance}, version ${known.version}${up}, ${known.ready ? "ready" : "not ready yet"}`);
  const wrong = [...table.rows.values()].filter((row) => ["person", "retrying", "behind"].includes(row.data?.level)).length;
  const alarm = document.querySelectorAll("#cards > li:not([data-level=notice])").length;
  const troubled = wrong || alarm;
  const title = `${document.visibilityState === "hidden" ? "(paused) " : lost ? "(lost) " : troubled ? `(${count(troubled)}) ` : ""}watchrelay ${known.cluster}`;
  if (document.title !== title) document.title = title;
  say(document.getElementById("totals"), totals());
  table.paint();
  paintCards();
}

/** Between what is relayed, and how much of it. */
function totals() {
  const rows = [...table.rows.values()].filter((row) => row.data);
  const sum = (of) => rows.reduce((total, row) => total + of(row), 0);
  const { kubernetes, kafka } = known.endpoints;
  return [
    `${kubernetes ?? "API server not known yet"} → ${kafka ?? "Kafka not known yet"}`,
    `${count(sum((row) => row.data.objects))} objects`,
    `${rate(sum((row) => row.pace.perS()))} events/s`,
    `${count(sum((row) => row.data.queued))} records queued`,
  ].join(" · ");
}

/** What the relay has written into the page. */
function takeFirst() {
  try {
    takeAll(JSON.parse(document.getElementById("first").textContent));
  } catch {
    return; // events bring it
  }
}

function reveal(stream) {
  find.value = "";
  table.reveal(stream);
}

// ---- the address remembers what is looked at, to be sent to somebody else -----------------------------------------------

function remember() {
  if (!started) return;
  const params = new URLSearchParams();
  if (table.find) params.set("find", table.find);
  if (table.level !== "all") params.set("show", table.level);
  if (table.sort !== "state" || table.down) params.set("sort", (table.down ? "-" : "") + table.sort);
  for (const stream of table.opened) params.append("open", stream);
  const hash = params.toString();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}

function recall() {
  const params = new URLSearchParams(location.hash.slice(1));
  const sort = params.get("sort") ?? "state";
  const key = sort.replace(/^-/, "");
  find.value = table.find = params.get("find") ?? "";
  if (table.heads.has(key)) table.sortBy(key, sort.startsWith("-"));
  const level = params.get("show") ?? "all";
  const opened = params.getAll("open");
  table.show(table.choices.has(level) ? level : "all");
  table.openOnly(opened);
}

addEventListener("hashchange", () => {
  if (location.hash !== "#streams") recall();
});
find.addEventListener("input", () => table.seek(find.value));
document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
line.hidden = false;
takeFirst();
paint();
setInterval(() => {
  askIfSilent();
  paint();
}, 1000);
if (document.visibilityState === "visible") connect();
