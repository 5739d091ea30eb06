// Conversations in the browser's storage, a key each, so that two tabs do not undo each other.
// What is there may be old, cut or somebody else's: it is read as a stranger's.

const PREFIX = "chat:";
const MOST_TURNS = 5000;

function isText(found) { return typeof found === "string"; }

function readCall({ id, function: { name, arguments: given } }) {
  if (![id, name, given].every(isText)) throw new Error("a call without id, name or arguments");
  return { id, type: "function", function: { name, arguments: given } };
}

function readTurn(found, known) {
  if (!isText(found.id) || !/^\w{1,64}$/.test(found.id) || known.has(found.id)) throw new Error("a turn without an id of its own");
  if (found.parent !== null && !known.has(found.parent)) throw new Error("a turn whose parent is not before it");
  if (!Object.hasOwn(ROLES, found.role)) throw new Error("a turn of an unknown role");
  if (!isText(found.content)) throw new Error("a turn without text");
  const turn = { id: found.id, parent: found.parent, role: found.role, content: found.content };
  for (const name of ["reasoning_content", "tool_call_id", "note"]) if (isText(found[name])) turn[name] = found[name];
  for (const name of ["json", "failed"]) if (found[name] === true) turn[name] = true;
  if (Array.isArray(found.tool_calls)) turn.tool_calls = found.tool_calls.map(readCall);
  known.add(turn.id);
  return turn;
}

// A conversation of JSON. Only what a conversation has is taken; anything else throws.
function readChat(text) {
  const found = JSON.parse(text);
  if (!Array.isArray(found?.turns) || found.turns.length > MOST_TURNS) throw new Error(`no list of at most ${MOST_TURNS} turns`);
  const known = new Set();
  const turns = found.turns.map((each) => readTurn(each, known));
  return {
    id: isText(found.id) && /^\w{1,64}$/.test(found.id) ? found.id : id(),
    title: isText(found.title) ? found.title.slice(0, 200) : "",
    updated: Number.isFinite(found.updated) ? found.updated : 0,
    turns,
    leaf: known.has(found.leaf) ? found.leaf : turns.at(-1)?.id ?? null,
  };
}

// Storage may be switched off, then every access throws.
function stored(key) {
  try { return localStorage.getItem(key); } catch { return null; }
}

function store(key, value) {
  try {
    localStorage.setItem(key, value);
    return true;
  } catch {
    return false;
  }
}

function storedChat(wanted) {
  try {
    const found = readChat(stored(PREFIX + wanted));
    return found.id === wanted ? { ...found, saved: true } : null;
  } catch {
    return null;
  }
}

// All conversations that can be read, the newest first.
function storedChats() {
  let keys = [];
  try { keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX)); } catch { /* none */ }
  const found = keys.map((key) => storedChat(key.slice(PREFIX.length))).filter((each) => each?.turns.length);
  return found.sort((a, b) => b.updated - a.updated);
}

// Turns are only ever added, so another tab's and these make one conversation. Of two titles the
// one that was kept last holds.
function join(of, other) {
  const known = new Set(of.turns.map((each) => each.id));
  of.turns.push(...other.turns.filter((each) => !known.has(each.id)));
  if (other.updated > of.updated) Object.assign(of, { title: other.title, updated: other.updated });
}

function save(of) {
  if (!of.turns.length) return;
  const there = stored(PREFIX + of.id);
  // Somebody deleted it meanwhile.
  if (there === null && of.saved) return;
  const other = storedChat(of.id);
  if (other) join(of, other);
  of.updated = Date.now();
  const { saved, ...plain } = of;
  if (store(PREFIX + of.id, JSON.stringify(plain))) {
    of.saved = true;
  } else {
    const remedy = "Export this conversation, or delete others";
    notice(`The browser has no room to keep this conversation. ${remedy}.`, { wrong: true });
  }
}

// The conversation that a tab shows is its own, also after a reload.
function remember(name, value) {
  try { sessionStorage.setItem(name, value); } catch { /* forgotten at a reload */ }
}

function remembered(name) {
  try { return sessionStorage.getItem(name); } catch { return null; }
}
