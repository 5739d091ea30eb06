// Markdown as elements. The lexer only cuts the text; the elements are made here, one by one, so
// that no markup of a model is ever parsed as such.

const { Lexer, hljs } = vendored;
const LINKS = ["http:", "https:", "mailto:"];
// Longer code stays plain: colours would take longer than a frame.
const MOST_HIGHLIGHTED = 30000;
// Deeper lists and quotes are shown as the text they are.
const DEEPEST = 24;
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", ndash: "\u2013", mdash: "\u2014", hellip: "\u2026", times: "\u00d7", copy: "\u00a9" };

function unescaped(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w{2,8}));/gi, (whole, decimal, hex, name) => {
    if (name) return Object.hasOwn(NAMED, name) ? NAMED[name] : whole;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}

function safeLink(href) {
  try { return LINKS.includes(new URL(href).protocol); } catch { return false; }
}

function link(href, content) {
  if (!safeLink(href)) return content;
  const made = element("a");
  made.href = href;
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  made.append(...content);
  // An image within a link is a link too, and links do not nest.
  for (const each of made.querySelectorAll("a")) each.replaceWith(...each.childNodes);
  return [made];
}

function wrapped(name, tokens, depth) {
  const made = element(name);
  made.append(...inline(tokens, depth + 1));
  return made;
}

function inline(tokens, depth = 0) {
  return tokens.flatMap((token) => {
    if (depth > DEEPEST) return [token.raw];
    switch (token.type) {
      case "strong": case "em": case "del": return [wrapped(token.type, token.tokens, depth)];
      case "codespan": return [element("code", token.text)];
      case "br": return [element("br")];
      case "checkbox": return [token.checked ? "\u2611 " : "\u2610 "];
      case "link": return link(token.href, inline(token.tokens, depth + 1));
      // An image would be fetched from elsewhere: its description links to it.
      case "image": return link(token.href, [token.text || token.href]);
      case "html": return [/^<br *\/?>$/i.test(token.text) ? element("br") : token.raw];
      case "escape": return [token.text];
      default: return token.tokens ? inline(token.tokens, depth + 1) : [unescaped(token.text ?? token.raw)];
    }
  });
}

function cell(name, { tokens, align }) {
  const made = element(name, undefined, align ?? "");
  made.append(...inline(tokens));
  if (name === "th") made.scope = "col";
  return made;
}

function table({ header, rows }) {
  const [box, made, head, body] = ["div", "table", "thead", "tbody"].map((each) => element(each));
  const row = (name, cells) => {
    const line = element("tr");
    line.append(...cells.map((each) => cell(name, each)));
    return line;
  };
  head.append(row("th", header));
  body.append(...rows.map((cells) => row("td", cells)));
  made.append(head, body);
  box.className = "table";
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "Table");
  box.append(made);
  return box;
}

function list({ ordered, start, items }, depth) {
  const made = element(ordered ? "ol" : "ul");
  if (ordered && start !== 1) made.start = start;
  made.append(...items.map((item) => {
    const entry = element("li", undefined, item.task ? "task" : "");
    entry.append(...blocks(item.tokens, depth + 1).flat());
    return entry;
  }));
  return made;
}

// The library's tree of scopes as elements.
function scopes(node) {
  if (typeof node === "string") return node;
  const made = element("span", undefined, node.scope ? `hl-${node.scope.split(/[.:]/)[0]}` : "");
  made.append(...node.children.map(scopes));
  return made;
}

function highlighted(text, language) {
  if (text.length > MOST_HIGHLIGHTED || !hljs.getLanguage(language)) return [text];
  const { errorRaised, _emitter } = hljs.highlight(text, { language, ignoreIllegals: true });
  // After an error the tree has the text only in part.
  return errorRaised ? [text] : _emitter.rootNode.children.map(scopes);
}

function block(text, language = "") {
  const made = element("pre");
  const code = element("code");
  made.tabIndex = 0;
  made.setAttribute("role", "group");
  made.setAttribute("aria-label", "Code");
  code.append(...highlighted(text, language));
  made.append(code);
  return made;
}

// A block of code under its language and a button. The click is heard by the page: see below.
function codeBlock({ text, lang }) {
  const language = (lang ?? "").trim().split(/\s/)[0];
  const [made, bar] = [element("div", undefined, "code"), element("div", undefined, "bar")];
  const press = element("button", "Copy", "plain small copy");
  press.type = "button";
  bar.append(element("span", language || "text"), press);
  made.append(bar, block(text, language.toLowerCase()));
  return made;
}

document.addEventListener("click", async ({ target }) => {
  const press = target.closest?.("button.copy");
  if (!press) return;
  await copy(press.closest(".code").querySelector("pre").textContent);
  press.textContent = "Copied";
  setTimeout(() => { press.textContent = "Copy"; }, 1500);
});

// Of each token, the nodes that show it.
function blocks(tokens, depth = 0) {
  return tokens.map((token) => {
    if (depth > DEEPEST) return [token.raw];
    switch (token.type) {
      case "space": case "def": return [];
      case "heading": return [wrapped(`h${token.level ?? 6}`, token.tokens, depth)];
      case "paragraph": return [wrapped("p", token.tokens, depth)];
      case "code": return [codeBlock(token)];
      case "list": return [list(token, depth)];
      case "table": return [table(token)];
      case "hr": return [element("hr")];
      case "html": return [element("p", token.raw.trim(), "as-is")];
      case "blockquote": {
        const made = element("blockquote");
        made.append(...blocks(token.tokens, depth + 1).flat());
        return [made];
      }
      default: return depth ? inline([token], depth) : [wrapped("p", [token], depth)];
    }
  });
}

// Headings stand below the one of their message, and none is more than a level below the last.
function level(tokens) {
  let last = 2;
  for (const token of tokens) if (token.type === "heading") token.level = last = Math.min(token.depth + 2, last + 1, 6);
}

// Shows Markdown in an element. Blocks that are as they were are not touched.
function write(into, text) {
  let tokens;
  try {
    tokens = new Lexer({ gfm: true, breaks: true }).lex(text);
    level(tokens);
  } catch {
    // Nesting too deep for the lexer.
    into.replaceChildren(element("p", text, "as-is"));
    into.shown = undefined;
    return;
  }
  // A reference may be defined after the blocks that use it.
  const defined = JSON.stringify(tokens.links);
  const shown = tokens.map(({ raw, level }) => `${level ?? ""}${raw}${defined}`);
  const last = into.shown ?? [];
  const same = last.findIndex((each, i) => each !== shown[i]);
  const kept = same < 0 ? last.length : same;
  if (!into.shown) into.replaceChildren();
  const made = blocks(tokens.slice(kept));
  const count = (into.counts ?? []).slice(0, kept);
  const before = count.reduce((sum, n) => sum + n, 0);
  const old = [...into.childNodes].slice(before);
  made.flat().forEach((each, i) => (i < old.length ? morph(old[i], each) : into.append(each)));
  for (const each of old.slice(made.flat().length)) each.remove();
  into.shown = shown;
  into.counts = [...count, ...made.map((each) => each.length)];
}

// JSON with a line for each value, as far as it has come. Only the space between values changes.
// Indentation is bounded: a model may repeat a bracket until its context ends.
function pretty(text) {
  const made = [];
  let depth = 0, quoted = false, escaped = false;
  const line = () => "\n" + "  ".repeat(Math.min(depth, DEEPEST));
  for (const c of text) {
    if (quoted) {
      made.push(c);
      quoted = escaped || c !== '"';
      escaped = !escaped && c === "\\";
    } else if (c === '"') {
      quoted = true;
      made.push(c);
    } else if (c === "{" || c === "[") {
      depth += 1;
      made.push(c, line());
    } else if (c === "}" || c === "]") {
      depth = Math.max(0, depth - 1);
      if (made.at(-1)?.startsWith("\n")) made.pop();
      if (!["{", "["].includes(made.at(-1))) made.push(line());
      made.push(c);
    } else if (c === ",") {
      made.push(c, line());
    } else if (c === ":") {
      made.push(": ");
    } else if (!/\s/.test(c)) {
      made.push(c);
    }
  }
  return made.join("");
}
