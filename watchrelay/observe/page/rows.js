// The table: one row per stream, its cells written only when they change, its order kept while somebody is in it.

import { age, bytes, clock, count, duration, el, mark, moment, now, rate, say, svg } from "./words.js";

const BIN_MS = 10000;
const BINS = 60;
const LEVELS = ["person", "retrying", "behind", "notice", "starting", "live", "standby", "stopped"];
const MARKS = { person: "✕", retrying: "↻", behind: "▲", notice: "–", starting: "…", live: "✓", standby: "○", stopped: "■" };
const MEANINGS = {
  person: "needs you",
  retrying: "being retried",
  behind: "behind",
  starting: "starting",
  live: "live",
  standby: "standing by",
  stopped: "stopped",
};

/** Events counted in bins of ten seconds, named by their time divided by that. */
class Pace {
  constructor() {
    this.bins = new Map();
    this.drawn = "";
  }

  takeHistory([newest], history) {
    this.bins.clear();
    history.forEach((events, index) => this.bins.set(newest - history.length + 1 + index, events));
  }

  take([newest, former, present]) {
    if (!newest) return;
    if (former) this.bins.set(newest - 1, former);
    this.bins.set(newest, present);
    for (const bin of this.bins.keys()) if (bin <= newest - BINS) this.bins.delete(bin);
  }

  perS() {
    const bin = Math.floor(now() / BIN_MS);
    const into = (now() % BIN_MS) / BIN_MS;
    return (((this.bins.get(bin - 1) ?? 0) * (1 - into) + (this.bins.get(bin) ?? 0)) * 1000) / BIN_MS;
  }

  /** The last ten minutes as a line, from the start of the relay on; the bin that is being counted is left out, it would always fall. */
  path(startedMs) {
    const newest = Math.floor(now() / BIN_MS) - 1;
    const oldest = newest - BINS + 1;
    const first = Math.max(oldest, Math.floor(startedMs / BIN_MS));
    const values = Array.from({ length: Math.max(newest - first + 1, 0) }, (_, index) => this.bins.get(first + index) ?? 0);
    const most = Math.max(0, ...values);
    if (!most) return "";
    return values.map((value, index) => `${index ? "L" : "M"}${first - oldest + index} ${(15 - (value / most) * 14).toFixed(1)}`).join("");
  }
}

/** Shape: a column is its heading, what to sort by (null: not sorted by), and the class of its cells. */
const COLUMNS = [
  { key: "stream", title: "Stream", by: (row) => row.data.stream },
  { key: "state", title: "State", by: (row) => LEVELS.indexOf(row.data.level) },
  { key: "objects", title: "Objects", by: (row) => row.data.objects, number: true },
  { key: "events", title: "Events/s", by: (row) => row.pace.perS(), number: true },
  { key: "lag", title: "Lag", by: (row) => row.lagMs() ?? -1, number: true },
  { key: "bookmark", title: "Last bookmark", by: (row) => now() - (moment(row.data.lastBookmark) ?? 0), number: true },
  { key: "snapshot", title: "Last snapshot", by: (row) => now() - (moment(row.data.lastSnapshot) ?? 0), number: true },
  { key: "epoch", title: "Epoch", by: (row) => row.data.epoch ?? -1, number: true },
  { key: "owner", title: "Owner", by: (row) => row.data.owner ?? "" },
  { key: "error", title: "Last error, next attempt", by: null },
];

class Row {
  constructor(table, id) {
    this.table = table;
    this.pace = new Pace();
    this.open = false;
    this.cells = {};
    this.node = el("tr", { role: "row" });
    this.button = el("button", { type: "button", class: "name", "aria-expanded": "false", "aria-controls": id });
    for (const { key, title, number } of COLUMNS) {
      const head = key === "stream";
      const cell = el(head ? "th" : "td", { role: head ? "rowheader" : "cell", "data-label": title, class: number ? `number ${key}` : key });
      if (head) cell.setAttribute("scope", "row");
      this.cells[key] = cell;
      this.node.append(cell);
    }
    this.cells.stream.append(this.button);
    this.mark = el("span", { class: "mark", "aria-hidden": "true" });
    this.state = el("span", { class: "word" });
    this.meaning = el("span", { class: "unseen" });
    this.since = el("span", { class: "since" });
    this.cells.state.append(this.mark, this.state, this.meaning, this.since);
    this.rate = el("span", { class: "rate" });
    this.line = svg("path", { d: "" });
    const picture = svg("svg", { viewBox: "0 0 59 16", preserveAspectRatio: "none", "aria-hidden": "true", class: "spark" });
    picture.append(this.line);
    this.cells.events.append(picture, this.rate);
    this.error = el("span", { class: "message" });
    this.next = el("span", { class: "next" });
    this.cells.error.append(this.error, this.next);
    this.detail = el("td", { role: "cell", colspan: String(COLUMNS.length) });
    this.more = el("tr", { role: "row", class: "more", id }, this.detail);
    this.more.hidden = true;
    this.button.addEventListener("click", () => this.toggle());
  }

  take(data) {
    const known = this.data?.transitionCount;
    this.data = data;
    this.pace.take(data.pace);
    say(this.button, data.stream);
    mark(this.node, "data-level", data.level);
    mark(this.node, "data-stream", data.stream);
    say(this.mark, MARKS[data.level] ?? "");
    say(this.state, data.state);
    say(this.meaning, `, ${MEANINGS[data.level] ?? data.level}, since `);
    say(this.cells.objects, data.listed === null ? count(data.objects) : `${count(data.listed)} listed`);
    say(this.cells.epoch, data.epoch === null ? "–" : String(data.epoch));
    say(this.cells.owner, data.owner ?? "–");
    say(this.error, data.error ?? "–");
    mark(this.error, "title", data.error);
    this.text = `${data.stream}\n${data.topic}\n${data.error ?? ""}\n${data.state}\n${data.owner ?? ""}`.toLowerCase();
    if (this.open && known !== data.transitionCount) this.showTransitions();
    this.paint();
  }

  lagMs() {
    const { lag, waiting } = this.data;
    return waiting === null ? lag : Math.max(lag ?? 0, now() - waiting);
  }

  paint() {
    const { since, next } = this.data;
    say(this.since, age(since));
    mark(this.since, "title", `since ${clock(since)}`);
    say(this.rate, rate(this.pace.perS()));
    mark(this.line, "d", this.pace.path(this.table.started));
    const lagMs = this.lagMs();
    say(this.cells.lag, lagMs === null ? "–" : duration(lagMs));
    this.ago(this.cells.bookmark, this.data.lastBookmark);
    this.ago(this.cells.snapshot, this.data.lastSnapshot);
    const waits = next !== null && this.data.error !== null;
    say(this.next, !waits ? "" : next > now() ? `again in ${duration(next - now())}` : "trying now");
    if (this.open) this.paintFacts();
  }

  ago(cell, value) {
    const atMs = moment(value);
    say(cell, atMs === null ? "–" : age(atMs));
    mark(cell, "title", atMs === null ? null : clock(atMs));
  }

  // ---- details ------------------------------------------------------------------------------------------------------

  toggle(open = !this.open) {
    if (open === this.open) return;
    this.open = open;
    mark(this.button, "aria-expanded", String(open));
    this.more.hidden = !open;
    if (open) {
      this.facts = el("dl");
      this.transitions = el("ol", { class: "transitions" });
      this.detail.replaceChildren(
        el("div", { class: "detail" }, el("div", {}, el("h3", {}, "Details"), this.facts), el("div", {}, el("h3", {}, "Recent transitions"), this.transitions)),
      );
      this.paintFacts();
      this.showTransitions();
    } else this.detail.replaceChildren();
    this.table.changed();
  }

  paintFacts() {
    const { data } = this;
    const at = (value) => (moment(value) === null ? "never" : `${clock(moment(value))} (${age(moment(value))})`);
    const facts = [
      ["Topic", data.topic || "not known yet"],
      ["Written by", data.owner ?? "nobody here"],
      ["Whole state in Kafka", data.complete ? "yes" : "not yet"],
      ["Frontier", data.frontier ?? "–"],
      ["Last event", at(data.lastEvent)],
      ["Last bookmark", at(data.lastBookmark)],
      ["Last snapshot", at(data.lastSnapshot)],
      ["Queued", `${count(data.queued)} records, ${bytes(data.queuedBytes)}`],
    ];
    if (data.counted) facts.push(["Changes that count", data.counted]);
    if (data.dirtyKeys) facts.push(["Objects whose present state waits", count(data.dirtyKeys)]);
    if (data.error) facts.push(["Last error", data.error], ["In trouble since", at(data.errorSince)]);
    facts.forEach(([name, value], index) => {
      const place = this.facts.children[index] ?? this.facts.appendChild(el("div", {}, el("dt"), el("dd")));
      say(place.firstChild, name);
      say(place.lastChild, value);
    });
    while (this.facts.children.length > facts.length) this.facts.lastChild.remove();
  }

  async showTransitions() {
    try {
      const answer = await fetch(`api/streams/${encodeURIComponent(this.data.stream)}`, { cache: "no-store" });
      if (!answer.ok || !this.open) return;
      const { transitions } = await answer.json();
      const items = transitions.map(({ time, state, message }) =>
        el("li", {}, el("time", { datetime: time }, clock(Date.parse(time))), " ", el("b", {}, state), message ? ` ${message}` : ""),
      );
      this.transitions.replaceChildren(...(items.length ? items : [el("li", {}, "none yet")]));
    } catch {
      return; // the line is down, and the page says so; the next change asks again
    }
  }
}

/** The rows by stream, shown by filter and order. `remember` is called when what the address should say has changed. */
export class Table {
  constructor(remember) {
    this.rows = new Map();
    this.started = 0;
    this.made = 0;
    this.order = [];
    this.remember = remember;
    this.find = "";
    this.level = "all";
    this.sort = "state";
    this.down = false;
    this.opened = new Set();
    this.body = document.getElementById("rows");
    this.heads = this.makeHeads();
    this.choices = this.makeChoices();
    this.body.addEventListener("pointerleave", () => this.arrange());
    this.body.addEventListener("focusout", () => setTimeout(() => this.arrange()));
  }

  makeHeads() {
    const heads = new Map();
    for (const { key, title, by, number } of COLUMNS) {
      const head = el("th", { role: "columnheader", scope: "col", class: number ? `number ${key}` : key });
      if (by) {
        const button = el("button", { type: "button" }, title);
        button.addEventListener("click", () => this.sortBy(key));
        head.append(button);
        heads.set(key, head);
      } else head.append(title);
      document.getElementById("columns").append(head);
    }
    return heads;
  }

  makeChoices() {
    const choices = new Map();
    const shows = { all: "All", wrong: "In trouble", starting: "Starting", live: "Live", standby: "Standing by", stopped: "Stopped" };
    for (const [value, title] of Object.entries(shows)) {
      const input = el("input", { type: "radio", name: "level", value });
      const number = el("span", { class: "count" });
      const label = el("label", { class: "choice" }, input, el("span", {}, `${title} `, number));
      input.addEventListener("change", () => this.show(value));
      document.getElementById("levels").append(label);
      choices.set(value, { input, number, label });
    }
    return choices;
  }

  takeAll(rows, history) {
    this.order = rows.map((row) => row.stream);
    for (const row of rows) this.row(row.stream).pace.takeHistory(row.pace, history[row.stream] ?? []);
    this.take(rows, this.order);
  }

  take(rows, order) {
    if (order) this.order = order;
    for (const data of rows) this.row(data.stream).take(data);
    const there = new Set(this.order);
    for (const [stream, row] of this.rows) {
      if (!there.has(stream)) {
        row.node.remove();
        row.more.remove();
        this.rows.delete(stream);
      }
    }
    this.arrange();
  }

  row(stream) {
    if (!this.rows.has(stream)) {
      const row = new Row(this, `more-${(this.made += 1)}`);
      this.rows.set(stream, row);
    }
    return this.rows.get(stream);
  }

  show(level) {
    this.level = level;
    this.choices.get(level).input.checked = true;
    this.remember();
    this.arrange(true);
  }

  seek(text) {
    this.find = text;
    this.remember();
    this.arrange(true);
  }

  /** The first click on numbers brings the greatest up, another one turns the order round. */
  sortBy(key, down = this.sort === key ? !this.down : COLUMNS.find((column) => column.key === key).number === true) {
    this.sort = key;
    this.down = down;
    this.remember();
    this.arrange(true);
  }

  /** Open these streams' rows, and no others. */
  openOnly(streams) {
    const wanted = new Set(streams);
    for (const [stream, row] of this.rows) row.toggle(wanted.has(stream));
  }

  reveal(stream) {
    if (!this.rows.has(stream)) return;
    this.find = "";
    this.show("all");
    const row = this.rows.get(stream);
    row.toggle(true);
    row.node.scrollIntoView({ block: "center" });
    row.button.focus({ preventScroll: true });
  }

  changed() {
    this.opened = new Set([...this.rows].filter(([, row]) => row.open).map(([stream]) => stream));
    this.remember();
  }

  matches({ data, text }) {
    const wrong = ["person", "retrying", "behind"].includes(data.level);
    return (this.level === "all" || (this.level === "wrong" ? wrong : data.level === this.level)) && text.includes(this.find.toLowerCase());
  }

  /** Put the rows in order. While a pointer or the focus is among them the order stays: nobody hits a row that has just moved. */
  arrange(asked = false) {
    const rows = this.order.map((stream) => this.rows.get(stream)).filter((row) => row?.data);
    const { by } = COLUMNS.find(({ key }) => key === this.sort);
    const place = new Map(rows.map((row, index) => [row, [by(row), index]]));
    const way = this.down ? -1 : 1;
    const wanted = rows.filter((row) => this.matches(row)).sort((a, b) => compare(place.get(a), place.get(b), way));
    const busy = !asked && (this.body.matches(":hover") || this.body.contains(document.activeElement));
    this.place(busy ? this.keepingOrder(wanted) : wanted);
    this.summarize(rows, wanted.length);
  }

  keepingOrder(wanted) {
    const rest = new Set(wanted);
    const held = [...this.body.children].map((node) => this.rows.get(node.dataset.stream)).filter((row) => rest.delete(row));
    return [...held, ...rest];
  }

  place(rows) {
    const nodes = rows.flatMap((row) => [row.node, row.more]);
    const there = new Set(nodes);
    for (const node of [...this.body.children]) if (!there.has(node)) node.remove();
    nodes.forEach((node, index) => {
      if (this.body.children[index] !== node) this.body.insertBefore(node, this.body.children[index] ?? null);
    });
  }

  summarize(rows, shown) {
    for (const [key, head] of this.heads) mark(head, "aria-sort", key !== this.sort ? null : this.down ? "descending" : "ascending");
    for (const [value, { number, label, input }] of this.choices) {
      const size = rows.filter((row) => this.matches.call({ level: value, find: "" }, row)).length;
      say(number, count(size));
      label.hidden = size === 0 && !["all", "wrong", "live"].includes(value) && !input.checked;
    }
    say(document.getElementById("shown"), shown === rows.length ? "" : `${count(shown)} of ${count(rows.length)} shown`);
    const none = document.getElementById("none");
    none.hidden = shown > 0;
    say(none, rows.length ? "No stream matches." : "The config names no stream.");
  }

  paint() {
    for (const row of this.rows.values()) if (row.data) row.paint();
  }
}

function compare([a, first], [b, second], way) {
  if (a === b) return first - second;
  return a < b ? -way : way;
}
