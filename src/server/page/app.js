// Chats with the server that this page comes from. Addresses are relative, so that a prefix is kept.
"use strict";

const $ = (id) => document.getElementById(id);
const log = $("log"), input = $("input");

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

// ---- What the browser keeps: one entry a conversation, so that two tabs do not overwrite each other.

const PREFIX = "nanovllm.conversation.";

function load(key, fallback, storage = "localStorage") {
  try {
    return JSON.parse(window[storage].getItem(key)) ?? fallback;
  } catch {
    return fallback; // private windows may refuse, too
  }
}

function store(key, value, storage = "localStorage") {
  try {
    window[storage].setItem(key, JSON.stringify(value));
  } catch {
    tell("The browser keeps nothing more: what is new here is lost with the page.");
  }
}

function conversations() {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX))
      .map((key) => load(key, null)).filter((it) => it?.messages).sort((a, b) => b.time - a.time);
  } catch {
    return [];
  }
}

function save(conversation) {
  if (!conversation.messages.length || conversation.deleted) return;
  store(PREFIX + conversation.id, conversation);
  showConversations();
}

function newConversation() {
  const id = Array.from(crypto.getRandomValues(new Uint32Array(2)), (n) => n.toString(36)).join("");
  return { id, title: "New conversation", time: Date.now(), messages: [] };
}

let current = newConversation();
let running = null; // { controller, conversation, message }
let model = "";
let apiKey = load("nanovllm.key", "", "sessionStorage");

// ---- Showing

// Text in blocks: code between fences, and paragraphs between empty lines.
function blocksOf(text) {
  const blocks = [];
  text.split(/^ *```/m).forEach((part, i) => {
    if (i % 2) blocks.push({ code: part.replace(/^[^\n]*\n?/, "").replace(/\n$/, "") });
    else blocks.push(...part.split(/\n\s*\n/).filter((it) => it.trim()).map((it) => ({ text: it.trim() })));
  });
  return blocks;
}

function blockNode({ code, text }) {
  if (code !== undefined) return element("pre", { tabIndex: 0 }, element("code", { textContent: code }));
  const parts = text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part, i) => {
    if (i % 2 === 0) return part;
    return part[0] === "`" ? element("code", { textContent: part.slice(1, -1) })
                           : element("strong", { textContent: part.slice(2, -2) });
  });
  return element("p", {}, ...parts);
}

// Only blocks that have changed are made anew: long answers stay quick and a selection survives.
function showText(body, text) {
  const blocks = blocksOf(text);
  body.blocks ??= [];
  blocks.forEach((block, i) => {
    const key = JSON.stringify(block);
    if (body.blocks[i] === key) return;
    if (body.children[i]) body.children[i].replaceWith(blockNode(block));
    else body.append(blockNode(block));
    body.blocks[i] = key;
  });
  while (body.children.length > blocks.length) body.lastChild.remove();
  body.blocks.length = blocks.length;
}

const nodes = new WeakMap(); // of messages

function showMessage(message) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  let node = nodes.get(message);
  if (!node) {
    const reasoning = element("details", { hidden: true }, element("summary"), element("div"));
    node = element("article", { className: `message ${message.role}` }, reasoning,
                   element("div", { className: "body" }), element("p", { className: "note", hidden: true }));
    node.setAttribute("aria-label", message.role === "user" ? "You" : "Model");
    nodes.set(message, node);
  }
  const [details, body, note] = node.children;
  const isRunning = running?.message === message;
  node.classList.toggle("running", isRunning);
  details.hidden = !message.reasoning;
  details.firstChild.textContent = isRunning && !message.content ? "Reasoning …" : "Reasoning";
  showText(details.lastChild, message.reasoning ?? "");
  showText(body, message.content);
  note.hidden = !message.note;
  note.textContent = message.note ?? "";
  note.classList.toggle("error", Boolean(message.failed));
  if (message.failed && message === current.messages.at(-1)) note.append(" ", element("button", { textContent: "Try again", onclick: () => retry(message) }));
  if (!node.isConnected) log.append(node);
  if (atEnd || message.role === "user") log.scrollTop = log.scrollHeight;
}

function show(conversation) {
  current = conversation;
  log.replaceChildren();
  conversation.messages.forEach(showMessage);
  log.scrollTop = log.scrollHeight;
  store("nanovllm.current", conversation.id);
  showConversations();
  openMenu(false);
}

function showConversations() {
  $("conversations").replaceChildren(...conversations().map((it) => {
    const conversation = [current, running?.conversation].find((live) => live?.id === it.id) ?? it;
    const button = (className, textContent, ariaLabel, onclick) =>
      element("button", { className, textContent, ariaLabel, title: ariaLabel, onclick });
    const title = button("title", it.title, it.title, () => show(conversation));
    if (conversation === current) title.setAttribute("aria-current", "true");
    return element("li", { className: conversation === current ? "current" : "" }, title,
      button("icon", "✎", `Rename ${it.title}`, () => rename(conversation, title)),
      button("icon", "×", `Delete ${it.title}`, () => remove(conversation)));
  }));
}

function rename(conversation, title) {
  const field = element("input", { value: conversation.title, ariaLabel: "Title" });
  const end = (keep) => {
    field.onblur = null;
    if (keep && field.value.trim()) conversation.title = field.value.trim();
    save(conversation);
    $("conversations").querySelector(".current .title")?.focus();
  };
  field.onblur = () => setTimeout(end, 0, true); // the list may be just being made anew
  field.onkeydown = (event) => {
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === "Enter" || event.key === "Escape") end(event.key === "Enter");
    if (event.key === "Escape") event.stopPropagation();
  };
  title.replaceWith(field);
  field.select();
}

function remove(conversation) {
  if (!confirm(`Delete "${conversation.title}"?`)) return;
  if (running?.conversation === conversation) running.controller.abort();
  conversation.deleted = true;
  localStorage.removeItem(PREFIX + conversation.id);
  if (conversation.id === current.id) show(newConversation());
  else showConversations();
}

function tell(sentence) {
  log.append(element("p", { className: "note error", role: "alert", textContent: sentence }));
  log.scrollTop = log.scrollHeight;
}

function openMenu(open) {
  $("sidebar").classList.toggle("open", open);
  $("menu").setAttribute("aria-expanded", String(open));
}

// ---- Talking to the server

class Failure extends Error { // with a sentence for the user
  constructor(sentence, status) {
    super(sentence);
    this.status = status; // of the server's answer, where there was one
  }
}

// Resolves to the key, or null where the user does not want to give one.
function askForKey(hint) {
  const dialog = $("key-dialog");
  $("key-hint").textContent = hint;
  dialog.showModal();
  return new Promise((resolve) => {
    let key = null;
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      key = $("key").value.trim();
      dialog.close();
    };
    $("key-cancel").onclick = () => dialog.close();
    dialog.onclose = () => {
      $("key").value = "";
      resolve(key);
    };
  });
}

async function request(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers, ...(apiKey && { Authorization: `Bearer ${apiKey}` }) };
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Failure("The server can't be reached: is it running, and are you online?");
    }
    if (response.ok) return response;
    if (response.status !== 401) {
      const answer = await response.json().catch(() => null);
      throw new Failure(answer?.error?.message || `The server answered with status ${response.status}.`, response.status);
    }
    const hint = apiKey ? "The server does not know this key." : "It is kept until this tab is closed.";
    const key = await askForKey(hint);
    if (!key) throw new Failure("The server wants an API key.");
    apiKey = key;
    store("nanovllm.key", key, "sessionStorage");
  }
}

async function findModel() {
  const answer = await (await request("v1/models")).json();
  model = answer.data?.[0]?.id ?? "";
  $("model").textContent = model || "No model";
  document.title = model ? `${model} – nanovllm` : "nanovllm";
}

// The objects that a stream of server-sent events holds, up to [DONE].
async function* events(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Failure("The connection broke off before the answer was complete.");
    text += decoder.decode(value, { stream: true });
    const lines = text.split(/\r?\n/);
    text = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function parameters() {
  const { system, no_thinking: noThinking, ...rest } = load("nanovllm.settings", {});
  const given = Object.entries(rest).filter(([, value]) => value !== "");
  const numbers = Object.fromEntries(given.map(([name, value]) => [name, Number(value)]));
  return { system, ...numbers, ...(noThinking && { chat_template_kwargs: { enable_thinking: false } }) };
}

const REASONS = { length: "Cut off: an answer may have no more tokens.", abort: "The server stopped the answer." };

async function answer(conversation) {
  const { system, ...rest } = parameters();
  // Without questions that got no answer: many templates want the roles to take turns.
  const messages = conversation.messages.filter((it, i, all) => it.content && all[i + 1]?.content !== "")
    .map(({ role, content }) => ({ role, content }));
  if (system) messages.unshift({ role: "system", content: system });
  const message = { role: "assistant", content: "", reasoning: "" };
  conversation.messages.push(message);
  running = { controller: new AbortController(), conversation, message };
  const refresh = () => conversation === current && showMessage(message);
  let frame = 0;
  setRunning(true);
  refresh();
  try {
    if (!model) await findModel();
    const { signal } = running.controller;
    const ask = () => request("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ model, messages, stream: true, ...rest }),
      signal,
    });
    const response = await ask().catch(async (error) => {
      if (error.status !== 404) throw error;
      await findModel(); // the server was started again, with another one
      return ask();
    });
    for await (const event of events(response)) {
      if (event.error) throw new Failure(event.error.message);
      const choice = event.choices?.[0];
      message.content += choice?.delta?.content ?? "";
      message.reasoning += choice?.delta?.reasoning ?? choice?.delta?.reasoning_content ?? "";
      message.note = REASONS[choice?.finish_reason] ?? message.note;
      frame ||= requestAnimationFrame(() => { frame = 0; refresh(); });
    }
  } catch (error) {
    const stopped = running.controller.signal.aborted;
    message.failed = !stopped;
    if (stopped) message.note = "Stopped.";
    else if (error instanceof Failure) message.note = error.message;
    else message.note = "The connection to the server broke off.";
  }
  cancelAnimationFrame(frame);
  running = null;
  setRunning(false);
  refresh();
  save(conversation);
}

function setRunning(isRunning) {
  log.setAttribute("aria-busy", String(isRunning));
  $("send").textContent = isRunning ? "Stop" : "Send";
}

function send() {
  const content = input.value.trim();
  if (!content || running) return;
  if (!current.messages.length) current.title = content.split("\n")[0].slice(0, 60);
  const message = { role: "user", content }, before = current.messages.at(-1);
  current.messages.push(message);
  if (before) showMessage(before); // without "Try again": it is not the last one any more
  current.time = Date.now();
  input.value = "";
  fitInput();
  showMessage(message);
  save(current);
  answer(current);
}

function retry(message) {
  if (running) return;
  current.messages = current.messages.filter((it) => it !== message);
  nodes.get(message)?.remove();
  answer(current);
}

// ---- Controls

function fitInput() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`; // with its border
}

$("composer").onsubmit = (event) => {
  event.preventDefault();
  if (running) running.controller.abort();
  else send();
};
input.oninput = fitInput;
input.onkeydown = (event) => {
  // Safari has ended composing when it tells of the key that ends it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  send();
};
document.onkeydown = (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  running?.controller.abort();
  openMenu(false);
};
$("menu").onclick = () => openMenu(!$("sidebar").classList.contains("open"));
$("new").onclick = () => {
  show(newConversation());
  input.focus();
};
$("theme").onclick = () => {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const shown = document.documentElement.dataset.theme || (isDark ? "dark" : "light");
  const theme = shown === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  store("nanovllm.theme", theme);
};

const form = $("parameters");
$("settings-button").onclick = () => {
  for (const [name, value] of Object.entries(load("nanovllm.settings", {}))) {
    const field = form.elements[name];
    if (field?.type === "checkbox") field.checked = value;
    else if (field) field.value = value;
  }
  $("settings").showModal();
};
form.onsubmit = (event) => {
  event.preventDefault();
  $("settings").close();
};
form.oninput = () => {
  const fields = Array.from(form.elements).filter((it) => it.name && it.validity.valid);
  const entries = fields.map((it) => [it.name, it.type === "checkbox" ? it.checked : it.value]);
  store("nanovllm.settings", Object.fromEntries(entries));
};
form.onreset = () => setTimeout(form.oninput);
window.onpagehide = () => running && save(running.conversation);

document.documentElement.dataset.theme = load("nanovllm.theme", "");
const last = load("nanovllm.current", "");
show(conversations().find((it) => it.id === last) ?? newConversation());
findModel().catch((error) => tell(error instanceof Failure ? error.message : "The list of models can't be read."));
