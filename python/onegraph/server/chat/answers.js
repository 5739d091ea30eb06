// Asking the server, and what is done to a conversation.

let running = null; // what stops the answer that is being made
let settle = null;  // keeps what has come of it, or the question, where the page goes away

function request() {
  const system = $("system").value.trim();
  const schema = json("schema");
  return {
    model: $("model").value || undefined,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...said()],
    stream: true,
    stream_options: { include_usage: true },
    tools: json("tools"),
    response_format: schema && { type: "json_schema", json_schema: { name: "answer", schema } },
    ...numbers(),
  };
}

// Adds what is new of an answer.
function add(turn, delta) {
  turn.content += delta.content ?? "";
  if (delta.reasoning_content) {
    turn.reasoning_content = (turn.reasoning_content ?? "") + delta.reasoning_content;
  }
  for (const { index, id, function: { name, arguments: given } } of delta.tool_calls ?? []) {
    turn.tool_calls ??= [];
    turn.tool_calls[index] ??= { id, type: "function", function: { name, arguments: "" } };
    turn.tool_calls[index].function.arguments += given ?? "";
  }
}

async function refusal(response) {
  try { return (await response.json()).error.message; } catch { return `The server answered with status ${response.status}.`; }
}

// The objects of a stream of events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    left += value;
    const lines = left.split("\n");
    left = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      yield JSON.parse(line.slice(6));
    }
  }
}

function told({ usage, timings }, finish) {
  const number = (found) => found.toLocaleString("en");
  const read = `${number(usage.prompt_tokens)} tokens read, ${number(usage.prompt_tokens_details.cached_tokens)} from cache`;
  const rate = timings.decode_tokens_per_second.toFixed(1);
  const first = ((timings.queue_seconds + timings.prefill_seconds) * 1000).toFixed(0);
  const cut = finish === "length" ? "; cut off by max_tokens or the context" : "";
  return `${number(usage.completion_tokens)} tokens at ${rate} per second, first after ${first} ms; ${read}${cut}`;
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
  $("log").setAttribute("aria-busy", String(is));
}

// Draws at most once a frame, and less often where a drawing takes long.
function painter(of, draw) {
  let waiting = false, next = 0;
  const paint = (live) => {
    if (of !== chat) return;
    const main = $("log").parentElement;
    const follows = atEnd(main, main.clientHeight);
    const began = performance.now();
    draw(live);
    if (follows) main.scrollTop = main.scrollHeight;
    next = performance.now() + 4 * (performance.now() - began);
  };
  const later = () => requestAnimationFrame((now) => {
    if (running !== null && now < next) return later();
    waiting = false;
    if (running !== null) paint(true);
  });
  return { paint, soon: () => { if (!waiting) { waiting = true; later(); } } };
}

// Asks for an answer to the branch. Where none comes, the conversation is again as it was at
// `before`, and `fresh`, what was said just now, waits in the field: it is no part of the
// conversation, for the next would be a second turn of the user in a row.
async function answer(before, fresh) {
  const of = chat, control = new AbortController();
  const turn = { role: "assistant", content: "" };
  let finish = null, failure = "";
  running = control;
  notice("");
  busy(true);
  $("status").textContent = `Waiting for ${modelName()}`;
  drawLog();
  const { paint, soon } = painter(of, drawTurn(turn));
  const keep = () => {
    if (finish !== "tool_calls") delete turn.tool_calls; // one that did not come to its end is none
    const has = finish || turn.content || turn.reasoning_content;
    // A page that went away may come back, and has kept it already.
    if (has && !turn.id) append(of, turn);
    if (!has) {
      of.turns = of.turns.filter((each) => each !== fresh);
      of.leaf = before;
    }
    save(of);
    return has;
  };
  settle = () => { if (!keep() && fresh) remember("draft", $("ask").value || fresh.content); };
  paint(true);
  $("log").parentElement.scrollTop = $("log").parentElement.scrollHeight;
  try {
    const asked = request();
    if (asked.response_format) turn.json = true;
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(),
      signal: control.signal,
      body: JSON.stringify(asked),
    });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const each of events(response)) {
      if (each.error) throw new Error(each.error.message);
      const choice = each.choices[0];
      if (choice) {
        add(turn, choice.delta);
        finish = choice.finish_reason ?? finish;
        soon();
      } else if (each.usage) {
        turn.note = told(each, finish);
      }
    }
    if (!finish) throw new Error("The server ended the connection before the answer was done.");
  } catch (wrong) {
    const stopped = wrong.name === "AbortError";
    failure = stopped ? "Stopped" : wrong instanceof TypeError ? "The server does not answer. Is it running?" : wrong.message;
    turn.note = failure;
    if (!stopped) turn.failed = true;
  }
  running = settle = null;
  busy(false);
  const has = keep();
  if (of !== chat) return drawList();
  if (has) {
    // The rest stays as it is: somebody may be reading there.
    paint(false);
    showAround();
  } else {
    if (fresh) $("ask").value ||= fresh.content;
    show();
    notice(failure, { wrong: turn.failed });
  }
  remember("draft", $("ask").value);
  $("status").textContent = has ? "The answer is complete" : "";
  if ([document.body, $("stop")].includes(document.activeElement)) $("ask").focus();
}

function send() {
  const text = $("ask").value.trim();
  if (!text || running) return;
  const [call] = pending(chat);
  const last = branch(chat).at(-1);
  // A turn that was never answered, as a page that crashed leaves it, becomes another branch.
  if (last?.role === "user") chat.leaf = last.parent;
  const before = chat.leaf;
  const fresh = append(chat, call ? { role: "tool", tool_call_id: call.id, content: text } : { role: "user", content: text });
  $("ask").value = "";
  if (!pending(chat).length) return void answer(before, fresh);
  save(chat);
  show();
}

function stop() { running?.abort(); }

// Another answer in the place of one, or the first to what was never answered.
function again(turn = branch(chat).at(-1)) {
  const asked = turn?.role === "assistant" ? turn.parent : turn?.id;
  if (running || !asked || (turn.role !== "assistant" && pending(chat).length)) return;
  const before = chat.leaf;
  chat.leaf = asked;
  answer(before);
}

// A changed message, as a branch of its own.
function resend(turn, text) {
  const before = chat.leaf;
  const { note, failed, reasoning_content, id: old, ...message } = turn;
  chat.leaf = turn.parent;
  const fresh = append(chat, { ...message, content: text });
  if (turn.role === "user" || (turn.role === "tool" && !pending(chat).length)) return void answer(before, fresh);
  save(chat);
  show();
}

function editLast() {
  const turn = branch(chat).findLast(({ role }) => role === "user");
  if (running || !turn) return;
  const at = branch(chat).indexOf(turn);
  edit(turn, $("log").children[at]);
}

function openChat(wanted) {
  stop();
  chat = storedChat(wanted) ?? emptyChat();
  notice("");
  show();
  $("ask").focus();
}

function anew() { openChat(""); }
