// The conversation as it is drawn.

const PROMPTS = [
  "Explain how a rainbow forms, in three sentences.",
  "Write a Python function that lists the prime numbers below n.",
  "Compare tea and coffee in a table.",
];

function modelName() { return $("model").value || "the model"; }

// What names the model, and what the field asks for.
function drawNames() {
  const [call] = pending(chat);
  const name = $("model").value;
  const length = lengths[name];
  $("ask").placeholder = call ? `What does ${call.function.name} return?` : `Message ${modelName()}`;
  $("greeting").textContent = name || "onegraph";
  const ready = length ? `Ready, with a context of ${length.toLocaleString("en")} tokens` : "Loads with your first message";
  $("about").textContent = name ? ready : "";
  for (const each of document.querySelectorAll("article[data-role=assistant] > h2")) each.textContent = modelName();
}

function waitingSign() {
  const made = element("span", undefined, "waiting");
  made.append(...[0, 1, 2].map(() => element("i")), element("span", `Waiting for ${modelName()}`, "unseen"));
  return made;
}

// Shows a turn; what is returned draws it again while it grows.
function drawTurn(turn) {
  const article = element("article");
  const reasoning = element("details", undefined, "reasoning");
  const summary = element("summary", "Reasoning");
  const thought = element("p");
  const body = element("div", undefined, "body");
  const calls = element("section", undefined, "calls");
  const note = element("small");
  const tools = element("div", undefined, "tools");
  article.dataset.role = turn.role;
  reasoning.append(summary, thought);
  article.append(element("h2", turn.role === "assistant" ? modelName() : ROLES[turn.role]), reasoning, body, calls, note, tools);
  // It is open while there is nothing else to read, until somebody says otherwise.
  let told = false;
  summary.addEventListener("click", () => { told = true; });
  const draw = (live) => {
    const thinks = (turn.reasoning_content ?? "").trim();
    const asked = turn.tool_calls ?? [];
    const empty = !turn.content && !asked.length;
    reasoning.hidden = thinks === "";
    if (thought.textContent !== thinks) thought.textContent = thinks;
    if (!told) reasoning.open = live && empty;
    const isJson = (turn.role === "tool" || turn.json) && /^\s*[[{]/.test(turn.content);
    if (live && empty && !thinks) body.replaceChildren(waitingSign());
    else if (isJson) morphAll(body, [block(pretty(turn.content), "json")]);
    else if (turn.role === "assistant") write(body, turn.content);
    else body.replaceChildren(element("p", turn.content, "as-is"));
    body.hidden = body.childElementCount === 0;
    morphAll(calls, asked.flatMap(({ function: { name, arguments: given } }) =>
      [element("h3", `Calls ${name}`), block(pretty(given), "json")]));
    calls.hidden = !asked.length;
    note.textContent = turn.note ?? "";
    note.hidden = !turn.note;
    note.classList.toggle("wrong", turn.failed === true);
    if (!live) tools.replaceChildren(...actions(turn, article));
  };
  $("log").append(article);
  return draw;
}

// Copy, edit, regenerate, and the way to other branches.
function actions(turn, article) {
  const found = [];
  const siblings = children(chat, turn.parent);
  const at = siblings.indexOf(turn);
  if (siblings.length > 1) {
    const go = (name, label, to) => {
      const made = iconButton(name, label, () => {
        if (running) return;
        chat.leaf = newestLeaf(chat, siblings[to]);
        save(chat);
        drawLog(true);
      });
      made.disabled = !siblings[to];
      return made;
    };
    found.push(go("back", "Previous version", at - 1), element("span", `${at + 1} / ${siblings.length}`, "count"), go("on", "Next version", at + 1));
  }
  found.push(iconButton("copy", "Copy", () => copy(turn.content)));
  found.push(iconButton("edit", "Edit", () => edit(turn, article)));
  if (turn.role === "assistant") found.push(iconButton("again", "Regenerate", () => again(turn)));
  return found;
}

// A field in the place of a message. The old one stays, as another branch.
function edit(turn, article) {
  if (running || article.querySelector(".edit")) return;
  const [box, row] = [element("div", undefined, "edit"), element("div")];
  const field = element("textarea");
  const hidden = [article.querySelector(".body"), article.querySelector(".tools")];
  field.value = turn.content;
  field.setAttribute("aria-label", "Edit the message");
  const end = () => {
    box.remove();
    hidden[0].hidden = hidden[0].childElementCount === 0;
    hidden[1].hidden = false;
    hidden[1].querySelector("[title=Edit]")?.focus();
  };
  const accept = () => {
    const text = field.value.trim();
    if (!text || running) return;
    if (text === turn.content && turn.role === "assistant") return end();
    resend(turn, text);
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.stopPropagation(); end(); }
    if (sends(event)) { event.preventDefault(); accept(); }
  });
  const accepts = button(turn.role === "assistant" ? "Save" : "Send", accept);
  row.append(button("Cancel", end), accepts);
  box.append(field, row);
  for (const each of hidden) each.hidden = true;
  article.querySelector(".body").after(box);
  field.focus();
}

// Draws all of the branch: at its end, or where the reader is if it `stays`.
function drawLog(stays = false) {
  const place = $("log").parentElement.scrollTop;
  $("log").replaceChildren();
  for (const turn of branch(chat)) drawTurn(turn)(false);
  $("welcome").hidden = chat.turns.length > 0;
  drawNames();
  const main = $("log").parentElement;
  main.scrollTop = stays ? place : main.scrollHeight;
}

function show() {
  drawLog();
  showAround();
}

// What beside the messages tells of the conversation.
function showAround() {
  remember("chat", chat.id);
  drawNames();
  drawList();
  $("heading").textContent = chat.turns.length ? titleOf(chat) : "New chat";
  document.title = chat.turns.length ? `${titleOf(chat)} \u2013 onegraph` : "onegraph";
}
