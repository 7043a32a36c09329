// The page: one line of server-sent events from the relay, closed while nobody looks, and what it says spread over cards and rows.

import { paintCards, takeCards } from "./cards.js";
import { takeGroup } from "./replicas.js";
import { Table } from "./rows.js";
import { age, clock, count, now, say, setClock } from "./words.js";

const SILENT_MS = 4000; // the relay says the time every second
const ASK_MS = 10000;
const line = document.getElementById("line");
const find = document.getElementById("find");

let source = null;
let asking = null;
let receivedMs = 0;
let known = null;
let crowded = false;
let started = false;

const table = new Table(remember);

// ---- what the relay says ---------------------------------------------------------------------------------------------

function takeAll(picture) {
  if (known && known.version !== picture.relay.version) {
    location.reload(); // another version runs now, and brings a page of its own
    return;
  }
  setClock(picture.at);
  takeRelay(picture.relay);
  takeCards(picture.cards, (stream) => reveal(stream));
  table.takeAll(picture.rows, picture.history);
  const first = !started;
  started = true;
  received();
  if (first) {
    document.getElementById("live").hidden = false;
    recall();
  }
}

function takeNews(news) {
  setClock(news.at);
  if (news.relay) takeRelay(news.relay);
  if (news.cards) takeCards(news.cards, (stream) => reveal(stream));
  table.take(news.rows ?? [], news.order);
  received();
}

function takeRelay(relay) {
  known = relay;
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
  source = new EventSource("api/events");
  source.addEventListener("open", () => {
    crowded = false;
  });
  source.addEventListener("all", ({ data }) => takeAll(JSON.parse(data)));
  source.addEventListener("news", ({ data }) => takeNews(JSON.parse(data)));
  source.addEventListener("error", () => {
    // The browser connects again by itself unless it was refused: too many look, or a proxy answers in the relay's place.
    if (source?.readyState === EventSource.CLOSED) ask();
    paint();
  });
}

function disconnect() {
  source?.close();
  source = null;
  clearTimeout(asking);
}

/** Without a line of events: ask for the whole now, and try for a line again a little later. */
async function ask() {
  clearTimeout(asking);
  asking = setTimeout(connect, ASK_MS);
  try {
    const answer = await fetch("api/overview", { cache: "no-store" });
    crowded = answer.ok;
    if (answer.ok) takeAll(await answer.json());
  } catch {
    crowded = false;
  }
  paint();
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
  const lost = !crowded && silentMs > SILENT_MS;
  if (!started) say(line, "connecting…");
  else if (lost) say(line, `No word from the relay since ${clock(now() - silentMs)} (${age(now() - silentMs)}); trying again. What is shown was true then.`);
  else if (crowded) say(line, "Many look at this relay: fresh every 10 s.");
  else say(line, "live");
  line.dataset.line = !started ? "none" : lost ? "lost" : crowded ? "slow" : "live";
  document.body.classList.toggle("stale", started && lost);
  if (!known) return;
  const up = known.started ? `, up ${age(known.started)}` : "";
  say(document.getElementById("about"), `${known.instance}, version ${known.version}${up}, ${known.ready ? "ready" : "not ready yet"}`);
  const wrong = [...table.rows.values()].filter((row) => ["person", "retrying", "behind"].includes(row.data?.level)).length;
  const alarm = document.querySelectorAll("#cards > li:not([data-level=notice])").length;
  const troubled = wrong || alarm;
  const title = `${document.visibilityState === "hidden" ? "(paused) " : lost ? "(lost) " : troubled ? `(${count(troubled)}) ` : ""}watchrelay ${known.cluster}`;
  if (document.title !== title) document.title = title;
  table.paint();
  paintCards();
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
paint();
setInterval(paint, 1000);
if (document.visibilityState === "visible") connect();
