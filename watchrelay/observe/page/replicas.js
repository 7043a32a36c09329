// The replicas that share the streams, in a row; nothing where no streams are shared.

import { count, el, mark, say } from "./words.js";

const section = document.getElementById("replicas");
const list = document.getElementById("members");

/** Show the group: null without one. */
export function takeGroup(group) {
  section.hidden = group === null;
  document.body.classList.toggle("shared", group !== null);
  if (group === null) return;
  const { members } = group;
  const unlike = new Set(members.map((member) => member.configHash)).size > 1;
  say(document.getElementById("replicas-title"), members.length ? `${count(members.length)} ${members.length === 1 ? "replica" : "replicas"}` : "Replicas: not known yet");
  list.replaceChildren(...members.map((member) => row(member, group, unlike)));
}

function row(member, group, unlike) {
  const words = [`${count(member.assigned)} ${member.assigned === 1 ? "stream" : "streams"}`];
  if (member.holder === group.leader) words.push("leader");
  if (member.holder === group.holder) words.push("this one");
  if (!member.fit) words.push("does not reach the API server");
  if (member.leaving) words.push("leaving");
  if (unlike) words.push(`config ${member.configHash}`);
  const node = el("li", {}, el("b", { class: "message" }, member.holder), ` ${words.join(", ")}`);
  mark(node, "data-level", member.fit && !member.leaving ? null : "retrying");
  mark(node, "title", `config ${member.configHash}, revision ${member.revision}, since ${member.configAdopted}`);
  return node;
}
