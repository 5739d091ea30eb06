"use strict";
const $ = (id) => document.getElementById(id);

// Text of a model goes into the page as text, never as markup.
function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function icon(name) {
  const [svg, use] = ["svg", "use"].map((each) => document.createElementNS("http://www.w3.org/2000/svg", each));
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

function button(label, does, kind = "") {
  const made = element("button", label, kind);
  made.type = "button";
  made.addEventListener("click", does);
  return made;
}

// A button that shows an icon; the label is for its tooltip and for screen readers.
function iconButton(name, label, does) {
  const made = button("", does, "plain small");
  made.append(icon(name));
  made.title = label;
  made.setAttribute("aria-label", label);
  return made;
}

// Makes `old` like `made` and keeps each node that may stay: what is selected, has the focus or is
// scrolled stays so while an answer grows.
function morph(old, made) {
  if (old.nodeType !== made.nodeType || old.nodeName !== made.nodeName || old.className !== made.className) {
    old.replaceWith(made);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== made.data) old.data = made.data;
    return;
  }
  for (const { name, value } of made.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
  morphAll(old, [...made.childNodes]);
}

function morphAll(parent, made) {
  const old = [...parent.childNodes];
  made.forEach((each, i) => (i < old.length ? morph(old[i], each) : parent.append(each)));
  for (const each of old.slice(made.length)) each.remove();
}

// Whether a scrolled part of this height shows the end of what is in it, or nearly.
function atEnd(part, height) { return part.scrollHeight - part.scrollTop - height < 80; }

// Somebody who reads the end still reads it where a notice, a keyboard or more lines take its place.
function keepEnd(part) {
  let height = part.clientHeight;
  new ResizeObserver(() => {
    if (atEnd(part, height)) part.scrollTop = part.scrollHeight;
    height = part.clientHeight;
  }).observe(part);
}

function notice(text, { wrong = false, action, does } = {}) {
  const bar = $("notice");
  bar.classList.toggle("wrong", wrong);
  if (!text) return bar.replaceChildren();
  const close = iconButton("close", "Dismiss", () => notice(""));
  const acts = action ? [button(action, () => { notice(""); does(); })] : [];
  bar.replaceChildren(element("span", text), ...acts, close);
}

// A page that came by plain HTTP from another machine has no `navigator.clipboard`.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const before = document.activeElement;
    const area = element("textarea", text, "unseen");
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    before?.focus();
  }
  $("status").textContent = "Copied";
}

function download(name, type, text) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
