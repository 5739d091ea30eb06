// The list of conversations.

let opened = null;   // whose actions are shown
let renaming = null; // whose title is being changed

function fileName(of) {
  return titleOf(of).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";
}

function exportJson(of) {
  const { saved, ...plain } = of;
  download(`${fileName(of)}.json`, "application/json", JSON.stringify(plain, null, 2));
}

function exportMarkdown(of) {
  download(`${fileName(of)}.md`, "text/markdown", asMarkdown(of));
}

function deleteChat(of) {
  const text = stored(PREFIX + of.id);
  localStorage.removeItem(PREFIX + of.id);
  if (of.id === chat.id) anew();
  drawList();
  const undo = () => {
    if (text && !store(PREFIX + of.id, text)) notice("The browser no longer has room for it.", { wrong: true });
    drawList();
  };
  notice(`Deleted \u201c${titleOf(of)}\u201d`, { action: "Undo", does: undo });
}

function renameChat(of, title) {
  renaming = null;
  const kept = of.id === chat.id ? chat : of;
  if (title.trim() && title.trim() !== titleOf(kept)) {
    kept.title = title.trim().slice(0, 200);
    save(kept);
  }
  showAround();
  $("list").querySelector(`[data-id="${of.id}"] button`)?.focus();
}

function renameField(of) {
  const field = element("input");
  field.value = titleOf(of);
  field.setAttribute("aria-label", "Name of the conversation");
  let left = false;
  const end = (title) => { if (!left) { left = true; renameChat(of, title); } };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) end(field.value);
    if (event.key === "Escape") end("");
    event.stopPropagation();
  });
  field.addEventListener("blur", () => end(field.value));
  return field;
}

function entry(of) {
  const made = element("li", undefined, of.id === chat.id ? "current" : "");
  made.dataset.id = of.id;
  if (renaming === of.id) {
    made.append(renameField(of));
    return made;
  }
  const row = element("div", undefined, "row");
  const show = button("", () => { openChat(of.id); closeChats(); }, "plain");
  show.append(element("span", titleOf(of), "title"));
  show.title = titleOf(of);
  if (of.id === chat.id) show.setAttribute("aria-current", "true");
  const more = iconButton("more", `Actions for ${titleOf(of)}`, () => {
    opened = opened === of.id ? null : of.id;
    drawList();
    $("list").querySelector(`[data-id="${of.id}"] .row button:last-child`)?.focus();
  });
  more.setAttribute("aria-expanded", String(opened === of.id));
  row.append(show, more);
  made.append(row);
  if (opened === of.id) {
    const rename = button("Rename", () => { renaming = of.id; drawList(); $("list").querySelector("input").select(); }, "plain");
    const json = button("JSON", () => exportJson(of), "plain");
    const markdown = button("Markdown", () => exportMarkdown(of), "plain");
    json.setAttribute("aria-label", "Export as JSON");
    markdown.setAttribute("aria-label", "Export as Markdown");
    const actions = element("div", undefined, "actions");
    const exports = element("span", "Export as");
    exports.append(json, markdown);
    actions.append(rename, button("Delete", () => deleteChat(of), "plain wrong"), exports);
    made.append(actions);
  }
  return made;
}

function drawList() {
  // What is typed there would be lost.
  if (renaming && $("list").querySelector("input")) return;
  const chats = storedChats();
  const none = element("li", "Conversations are kept in this browser.", "none");
  $("list").replaceChildren(...(chats.length ? chats.map(entry) : [none]));
}

async function importChat() {
  const [file] = $("file").files;
  $("file").value = "";
  if (!file) return;
  try {
    const found = readChat(await file.text());
    if (!found.turns.length) throw new Error("it has no turns");
    found.id = id();
    stop();
    chat = found;
    save(chat);
    show();
    closeChats();
  } catch (wrong) {
    notice(`${file.name} cannot be imported: ${wrong.message}. A conversation exported as JSON can.`, { wrong: true });
  }
}

function openChats() {
  $("chats").classList.add("open");
  $("shade").hidden = false;
  $("show-chats").setAttribute("aria-expanded", "true");
  $("new").focus();
}

function closeChats() {
  if (!$("chats").classList.contains("open")) return;
  $("chats").classList.remove("open");
  $("shade").hidden = true;
  $("show-chats").setAttribute("aria-expanded", "false");
  $("ask").focus();
}

// Another tab has kept or deleted something.
function fromAnotherTab({ key, newValue }) {
  if (key === null || key.startsWith(PREFIX)) drawList();
  if (key !== PREFIX + chat.id) return;
  if (newValue === null) {
    anew();
    notice("This conversation was deleted in another tab.");
  } else if (!running && !document.querySelector(".edit")) {
    const other = storedChat(chat.id);
    if (other) join(chat, other);
    drawLog(true);
    showAround();
  }
}
