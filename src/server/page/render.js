// Trees of markdown.js as nodes of the page, and the renewal of those that have changed. Nothing here reads HTML.
"use strict";

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

const isAddress = (href) => /^https?:\/\/[^/]/i.test(href) && URL.canParse(href);

// Links lead to http and https only; other targets are shown behind their text. Images are not fetched: who wrote the
// address would learn of it. They are links with their description as the text.
function linkNodes({ type, href, children }, isInLink) {
  const text = inlineNodes(type === "image" && !children.length ? [href] : children, true);
  if (isInLink) return text;
  if (isAddress(href)) return [element("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...text)];
  const isShown = !href || (children.length === 1 && children[0] === href);
  return isShown ? text : [...text, ` (${href})`];
}

function inlineNodes(list, isInLink = false) {
  return list.flatMap((it) => {
    if (typeof it === "string") return it;
    switch (it.type) {
      case "link": case "image": return linkNodes(it, isInLink);
      case "code": return element("code", { textContent: it.text });
      case "math": return element("span", { className: "math", textContent: it.text });
      case "break": return element("br");
      default: return element(it.type, {}, ...inlineNodes(it.children, isInLink)); // em, strong, del
    }
  });
}

// The clipboard's own interface is there for https and for this machine only.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return;
  } catch {
    // as browsers could before
  }
  const focused = document.activeElement;
  const field = element("textarea", { value: text, className: "offscreen", readOnly: true });
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  focused?.focus();
  if (!isDone) throw new Error("The browser does not let this page copy.");
}

function copyButton(getText, label) {
  const button = element("button", { type: "button", className: "action copy", textContent: "Copy", ariaLabel: label });
  const say = (word) => {
    button.textContent = word;
    button.ariaLabel = word;
    setTimeout(() => Object.assign(button, { textContent: "Copy", ariaLabel: label }), 1500);
  };
  button.onclick = () => copy(getText()).then(() => say("Copied"), () => say("Not copied"));
  return button;
}

function codeNode({ language, text }) {
  const code = element("code", { textContent: text });
  const bar = element("div", { className: "bar" }, element("span", { textContent: language }),
                      copyButton(() => code.textContent, "Copy the code"));
  return element("div", { className: "code" }, bar, element("pre", { tabIndex: 0 }, code));
}

function tableNode({ aligns, rows }) {
  const rowNode = (row, tag) => element("tr", {}, ...row.map((cell, i) =>
    element(tag, { className: aligns[i] }, ...inlineNodes(parseInline(cell)))));
  const table = element("table", {}, element("thead", {}, rowNode(rows[0], "th")),
                        element("tbody", {}, ...rows.slice(1).map((row) => rowNode(row, "td"))));
  return element("div", { className: "table", tabIndex: 0 }, table);
}

function blockNode(block) {
  const { type, children } = block;
  switch (type) {
    case "paragraph": return element("p", {}, ...inlineNodes(parseInline(block.text)));
    // The page's own heading is the first one; those of messages stand below it.
    case "heading": return element(`h${Math.min(6, block.level + 1)}`, {}, ...inlineNodes(parseInline(block.text)));
    case "code": return codeNode(block);
    case "math": return element("div", { className: "math", textContent: block.text, tabIndex: 0 });
    case "table": return tableNode(block);
    case "rule": return element("hr");
    case "quote": return element("blockquote", {}, ...children.map(blockNode));
    case "item": return element("li", {}, ...children.map(blockNode));
    default: { // list
      const list = element(block.start === null ? "ul" : "ol", {}, ...children.map(blockNode));
      if (block.start !== null) list.start = block.start;
      list.classList.toggle("loose", block.isLoose);
      return list;
    }
  }
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

// Makes the node of `before` one of `after`, by as little as can be: a selection, a place in long code, the focus stay.
function renew(node, before, after) {
  if (same(before, after)) return;
  const isContainer = after.children && before.type === after.type && before.start === after.start;
  if (isContainer) {
    if (after.type === "list") node.classList.toggle("loose", after.isLoose);
    renewChildren(node, 0, before.children, after.children);
  } else if (after.type === "code" && before.type === "code" && before.language === after.language) {
    const text = node.querySelector("pre code").firstChild;
    if (text && after.text.startsWith(before.text)) text.appendData(after.text.slice(before.text.length));
    else node.querySelector("pre code").textContent = after.text;
  } else {
    node.replaceWith(blockNode(after));
  }
}

// The children of `parent` from the given one on.
function renewChildren(parent, first, before, after) {
  before.slice(0, after.length).forEach((block, i) => renew(parent.children[first + i], block, after[i]));
  while (parent.children.length > first + after.length) parent.lastChild.remove();
  parent.append(...after.slice(before.length).map(blockNode));
}

// Shows Markdown that may grow: what more text can't change is neither read nor made again.
function showMarkdown(parent, text) {
  let shown = parent.shown ?? { text: "", at: 0, blocks: [] };
  if (shown.text === text) return;
  if (!text.startsWith(shown.text)) {
    parent.replaceChildren();
    shown = { text: "", at: 0, blocks: [] };
  }
  const { blocks, numSettled, at } = parseMarkdown(text.slice(shown.at));
  const first = parent.children.length - shown.blocks.length;
  renewChildren(parent, first, shown.blocks, blocks);
  parent.shown = { text, at: shown.at + at, blocks: blocks.slice(numSettled) };
}
