// What is wrong: one card per cause, worst first, with its age, its message, and what to do.

import { age, clock, count, duration, el, mark, now, prose, say } from "./words.js";

const LEVELS = { person: "needs you", retrying: "being retried", behind: "behind", notice: "notice" };
const NAMES_MAX = 8;
const list = document.getElementById("cards");
const shown = new Map();

class Card {
  constructor(cause, find) {
    this.find = find;
    this.level = el("span", { class: "level" });
    this.title = el("h3");
    this.when = el("p", { class: "when" });
    this.messages = el("ul", { class: "messages" });
    this.streams = el("p", { class: "names" });
    this.todo = el("p", { class: "todo" });
    this.node = el("li", { class: "card", "data-cause": cause });
    this.node.append(el("div", { class: "head" }, this.level, this.title), this.when, this.messages, this.streams, this.todo);
  }

  take(card) {
    this.card = card;
    mark(this.node, "data-level", card.level);
    say(this.level, LEVELS[card.level] ?? card.level);
    say(this.title, card.title);
    this.name(card.streams);
    this.tell(card);
    this.paint();
  }

  /** Messages and advice; they have buttons, so they are made again only when they change. */
  tell({ messages, streams, todo, runbook, runbookUrl }) {
    const key = JSON.stringify([messages, streams.length > 1, todo, runbookUrl]);
    if (key === this.telling) return;
    this.telling = key;
    this.messages.replaceChildren(
      ...messages.map(({ stream, text }) => el("li", {}, ...(stream && streams.length > 1 ? [el("b", {}, stream), " "] : []), ...prose(text))),
    );
    this.todo.replaceChildren(el("b", {}, "Do: "), ...prose(todo));
    if (runbook) this.todo.append(" ", el("span", { class: "runbook" }, "Runbook: ", el("a", { href: runbookUrl, target: "_blank", rel: "noreferrer" }, runbook)));
  }

  /** The streams by name, each a way to its row; a person may be on one of them, so they are made again only when they change. */
  name(streams) {
    const key = streams.join("\n");
    if (key === this.named) return;
    this.named = key;
    this.streams.hidden = streams.length === 0;
    const names = streams.slice(0, NAMES_MAX).map((stream) => {
      const button = el("button", { type: "button", class: "name" }, stream);
      button.addEventListener("click", () => this.find(stream));
      return button;
    });
    const more = streams.length - names.length;
    this.streams.replaceChildren(
      el("span", {}, streams.length === 1 ? "Stream: " : `${count(streams.length)} streams: `),
      ...names.flatMap((name, index) => (index ? [" ", name] : [name])),
      more > 0 ? ` and ${count(more)} more` : "",
    );
  }

  paint() {
    const { since, next } = this.card;
    const again = next === null ? "" : next > now() ? `, tried again in ${duration(next - now())}` : ", being tried now";
    say(this.when, `Since ${clock(since)} (${age(since)})${again}`);
  }
}

/** Show these cards; `find` leads to a stream's row. */
export function takeCards(cards, find) {
  const causes = new Set(cards.map((card) => card.cause));
  for (const [cause, card] of shown) {
    if (!causes.has(cause)) {
      card.node.remove();
      shown.delete(cause);
    }
  }
  cards.forEach((card, index) => {
    if (!shown.has(card.cause)) shown.set(card.cause, new Card(card.cause, find));
    const held = shown.get(card.cause);
    held.take(card);
    if (list.children[index] !== held.node) list.insertBefore(held.node, list.children[index] ?? null);
  });
  list.hidden = cards.length === 0;
}

export const paintCards = () => shown.forEach((card) => card.paint());
