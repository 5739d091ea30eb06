// The drawer of settings, the models, light and dark.

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed"];
const KEPT = ["system", "tools", "schema", ...NUMBERS];
let lengths = {}; // of each model that is loaded, the tokens of its context

// A header takes bytes: those of the key in UTF-8, each as a letter.
function utf8(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

function headers() {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${utf8(key)}` }) };
}

function numbers() {
  const found = {};
  for (const name of NUMBERS) {
    const text = $(name).value.trim();
    if (text !== "") found[name] = Number.isFinite(Number(text)) ? Number(text) : text;
  }
  return found;
}

// What a field has as JSON; undefined where it is empty.
function json(name) {
  const text = $(name).value.trim();
  if (text === "") return undefined;
  try { return JSON.parse(text); } catch (wrong) { throw new Error(`${name}: ${wrong.message}`); }
}

function toggleSettings() {
  if ($("settings").open) return $("settings").close();
  closeChats();
  $("settings").showModal();
  $("system").focus();
}

function askForKey() {
  if (!$("settings").open) $("settings").showModal();
  notice("The server asks for an API key: enter it in the settings.");
  // On a phone the settings cover the notice.
  $("about-key").textContent = "The server asks for a key. Forgotten when you close the page.";
  $("key").focus();
}

// The defaults of the server, which it takes where a field is empty.
async function defaults() {
  const model = $("model").value;
  const response = await fetch(`props?model=${encodeURIComponent(model)}`, { headers: headers() });
  if (!response.ok || model !== $("model").value) return;
  const { params = {} } = (await response.json()).default_generation_settings;
  for (const name of NUMBERS) if (typeof params[name] === "number") $(name).placeholder = String(params[name]);
}

async function models() {
  const response = await fetch("v1/models", { headers: headers() });
  if (response.status === 401) return askForKey();
  if (!response.ok) throw new Error(await refusal(response));
  const chosen = $("model").value || stored("model");
  const { data } = await response.json();
  lengths = Object.fromEntries(data.map((each) => [each.id, each.max_model_len]));
  $("model").replaceChildren(...data.map(({ id }) => new Option(id, id, false, id === chosen)));
  notice("");
  drawNames();
  await defaults();
}

function changeModel() {
  store("model", $("model").value);
  drawNames();
  defaults().catch(() => {});
}

function turnTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.className || (dark ? "dark" : "light");
  document.documentElement.className = now === "dark" ? "light" : "dark";
  store("theme", document.documentElement.className);
}
