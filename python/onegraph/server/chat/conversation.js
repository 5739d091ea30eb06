// A conversation is a tree of turns, messages as OpenAI has them with an `id` and a `parent`;
// `leaf` ends the branch that is shown. A turn that was answered never changes: an edit is another
// child of its parent. `turns` has parents before children.

const ROLES = { user: "You", assistant: "Model", tool: "Result" };
// What is the page's own of a turn, and not the server's.
const OWN = ["id", "parent", "json", "note", "failed"];

function id() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function emptyChat() {
  return { id: id(), title: "", updated: 0, turns: [], leaf: null };
}

let chat = emptyChat();

function children(of, parent) { return of.turns.filter((each) => each.parent === parent); }

// The turns from the first to a leaf.
function branch(of, leaf = of.leaf) {
  const byId = new Map(of.turns.map((each) => [each.id, each]));
  const found = [];
  for (let turn = byId.get(leaf); turn; turn = byId.get(turn.parent)) found.push(turn);
  return found.reverse();
}

// The messages of the branch that is shown, as the server takes them.
function said() {
  return branch(chat).map((turn) => Object.fromEntries(Object.entries(turn).filter(([name]) => !OWN.includes(name))));
}

// Makes a message the next turn.
function append(of, message) {
  const turn = Object.assign(message, { id: id(), parent: of.leaf });
  of.turns.push(turn);
  of.leaf = turn.id;
  return turn;
}

// The newest end of what follows a turn.
function newestLeaf(of, turn) {
  for (let next = turn; next; next = children(of, turn.id).at(-1)) turn = next;
  return turn.id;
}

// The calls of the last answer that nobody has said the result of.
function pending(of) {
  const turns = branch(of);
  const last = turns.findLastIndex(({ role }) => role === "assistant");
  const given = turns.slice(last + 1);
  if (last < 0 || given.some(({ role }) => role === "user")) return [];
  const done = given.map((each) => each.tool_call_id);
  return (turns[last].tool_calls ?? []).filter(({ id }) => !done.includes(id));
}

function titleOf(of) {
  const first = of.turns.find(({ role }) => role === "user");
  const line = (of.title || first?.content || "").trim().replace(/\s+/g, " ");
  return (line.length > 80 ? `${line.slice(0, 79)}\u2026` : line) || "Untitled";
}

function asMarkdown(of) {
  const parts = branch(of).map(({ role, content, tool_calls }) => {
    const fence = "`".repeat(Math.max(3, ...(content.match(/`+/g) ?? []).map((run) => run.length + 1)));
    const calls = (tool_calls ?? []).map(({ function: { name, arguments: given } }) => `Calls \`${name}\` with\n\n~~~json\n${given}\n~~~`);
    const text = role === "tool" ? `${fence}\n${content}\n${fence}` : content;
    return [`## ${ROLES[role]}`, text, ...calls].filter(Boolean).join("\n\n");
  });
  return `${[`# ${titleOf(of)}`, ...parts].join("\n\n")}\n`;
}
