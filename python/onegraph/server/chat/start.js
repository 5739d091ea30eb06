// What keys and buttons do, and what a page begins with.

// On a phone Enter makes a line, for there is no Shift+Enter.
function sends(event) {
  if (event.key !== "Enter" || event.isComposing || event.shiftKey) return false;
  return event.ctrlKey || event.metaKey || !matchMedia("(pointer: coarse)").matches;
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("ask").addEventListener("keydown", (event) => {
  if (sends(event)) { event.preventDefault(); send(); }
});
$("ask").addEventListener("input", () => remember("draft", $("ask").value));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if ($("settings").open) return;
    return $("chats").classList.contains("open") ? closeChats() : stop();
  }
  if (!event.altKey || event.ctrlKey || event.metaKey) return;
  const does = { KeyR: () => again(), KeyN: anew, KeyT: turnTheme, KeyS: toggleSettings, ArrowUp: editLast }[event.code];
  if (does) { event.preventDefault(); does(); }
});
for (const [name, does] of Object.entries({
  "stop": stop, "new": () => { anew(); closeChats(); }, "new-here": anew, "theme": turnTheme,
  "show-settings": toggleSettings, "hide-settings": toggleSettings,
  "show-chats": openChats, "hide-chats": closeChats, "shade": closeChats,
  "import": () => $("file").click(),
})) $(name).addEventListener("click", does);
$("settings").addEventListener("close", () => $("ask").focus());
$("settings").addEventListener("click", ({ target, clientX }) => {
  if (target === $("settings") && clientX < $("settings").getBoundingClientRect().left) $("settings").close();
});
$("file").addEventListener("change", importChat);
$("model").addEventListener("change", changeModel);

const reach = () => models().catch((wrong) => {
  const gone = wrong instanceof TypeError;
  notice(gone ? "The server does not answer. Is it running?" : wrong.message, { wrong: true, action: "Try again", does: reach });
});
$("key").addEventListener("change", reach);
for (const name of KEPT) {
  $(name).value = stored(name) ?? "";
  $(name).addEventListener("input", () => store(name, $(name).value));
}
$("prompts").append(...PROMPTS.map((text) => {
  const entry = element("li");
  entry.append(button(text, () => { $("ask").value = text; send(); }));
  return entry;
}));
keepEnd($("log").parentElement);
addEventListener("storage", fromAnotherTab);
// A browser may bring the page back as it was: an answer that was being made has ended then.
addEventListener("pagehide", () => { settle?.(); stop(); });

document.documentElement.className = ["light", "dark"].find((each) => each === stored("theme")) ?? "";
$("ask").value = remembered("draft") ?? "";
openChat(remembered("chat") ?? "");
reach();
