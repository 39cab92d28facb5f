// The conversations and their messages on the page. Each is answered on its own, whichever is shown.
"use strict";

const log = $("log"), input = $("input");
const answers = new Map(); // of conversations that are being answered: { controller, message }
const drafts = new Map(); // of ids: what was written and not sent
const nodes = new WeakMap(); // of messages
let current = newConversation();

function save(conversation) {
  if (!conversation.messages.length || conversation.deleted) return;
  store(PREFIX + conversation.id, conversation);
  showConversations();
}

function tell(sentence) {
  log.append(element("p", { className: "note error", role: "alert", textContent: sentence }));
  log.scrollTop = log.scrollHeight;
}

// ---- Messages

function actionButton(textContent, onclick) {
  return element("button", { type: "button", className: "action", textContent, onclick });
}

function messageNode(message) {
  const node = element("article", { className: `message ${message.role}` },
    element("details", { hidden: true }, element("summary"), element("div")),
    element("div", { className: "body" }), element("div", { className: "calls" }),
    element("p", { className: "note", hidden: true }), element("div", { className: "actions" }));
  node.setAttribute("aria-label", message.role === "user" ? "You" : "Model");
  const other = message.role === "user" ? actionButton("Edit", () => edit(message))
                                        : actionButton("Answer again", () => answerFrom(message));
  other.classList.toggle("again", message.role !== "user");
  node.lastChild.append(copyButton(() => message.content, "Copy the message"), other);
  return node;
}

function callNode(call) {
  let text = call.arguments;
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // it is still coming, or the model has made a mistake: shown as it is
  }
  const title = element("p", {}, "Calls ", element("code", { textContent: call.name }));
  return element("div", {}, title, codeNode({ language: "json", text }));
}

function showNote(note, message) {
  note.hidden = !message.note;
  note.textContent = message.note ?? "";
  note.classList.toggle("error", Boolean(message.failed));
  if (message !== current.messages.at(-1)) return;
  const offer = (textContent, onclick) => note.append(" ", element("button", { textContent, onclick }));
  if (message.isFull) offer("New conversation", () => goOnAnew(message));
  else if (message.failed) offer("Try again", () => answerFrom(message));
}

function showMessage(message) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  const node = nodes.get(message) ?? messageNode(message);
  nodes.set(message, node);
  const [details, body, calls, note, actions] = node.children;
  const isRunning = answers.get(current)?.message === message;
  node.classList.toggle("running", isRunning);
  details.hidden = !message.reasoning;
  details.firstChild.textContent = isRunning && !message.content ? "Reasoning …" : "Reasoning";
  showMarkdown(details.lastChild, message.reasoning ?? "");
  if (message.role === "user") body.textContent = message.content; // as typed
  else showMarkdown(body, message.content);
  if (message.calls) calls.replaceChildren(...message.calls.map(callNode));
  showNote(note, message);
  actions.hidden = isRunning || !message.content;
  if (!node.isConnected) log.append(node);
  if (atEnd || message.role === "user") log.scrollTop = log.scrollHeight;
}

function edit(message) {
  const node = nodes.get(message);
  const field = element("textarea", { value: message.content, rows: 1, ariaLabel: "Message" });
  const isLast = current.messages.indexOf(message) >= current.messages.length - 2;
  const warning = isLast ? "The answer is replaced." : "All that follows is replaced.";
  const hint = element("p", { className: "hint", textContent: warning });
  const cancel = element("button", { type: "button", textContent: "Cancel" });
  const submit = element("button", { className: "primary", textContent: "Send" });
  const buttons = element("div", { className: "buttons" }, cancel, submit);
  const form = element("form", { className: "edit" }, field, hint, buttons);
  const end = () => {
    form.replaceWith(node);
    node.querySelector(".action:last-child").focus();
  };
  cancel.onclick = end;
  form.onsubmit = (event) => {
    event.preventDefault();
    const content = typedIn(field);
    if (!content || answers.has(current)) return;
    truncate(current.messages.indexOf(message));
    form.remove();
    ask(content);
    input.focus();
  };
  field.oninput = () => fit(field);
  field.onkeydown = (event) => {
    if (isEnter(event)) {
      event.preventDefault();
      form.requestSubmit();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      end();
    }
  };
  node.replaceWith(form);
  fit(field);
  field.focus();
}

// ---- The list of conversations

const live = (stored) => [current, ...answers.keys()].find((it) => it.id === stored.id) ?? stored;

function show(conversation) {
  drafts.set(current.id, input.value);
  current = conversation;
  input.value = drafts.get(current.id) ?? "";
  fit(input);
  log.replaceChildren();
  current.messages.forEach(showMessage);
  log.scrollTop = log.scrollHeight;
  store("nanovllm.current", current.id);
  showState();
  showConversations();
  openMenu(false);
}

function rowNode(id) {
  const button = (className, textContent, act) =>
    element("button", { className, textContent, onclick: () => act(row.conversation) });
  const row = element("li", {}, button("title", "", (it) => show(live(load(PREFIX + id, it)))),
                      button("icon", "✎", (it) => rename(it, row)), button("icon", "×", remove));
  row.id = `conversation-${id}`;
  return row;
}

// Rows are kept: one may have the focus, or a field with a title that is just being written.
function showConversations() {
  const list = $("conversations"), conversations = storedConversations().map(live);
  const ids = new Set(conversations.map((it) => `conversation-${it.id}`));
  for (const row of Array.from(list.children)) if (!ids.has(row.id)) row.remove();
  conversations.forEach((conversation, i) => {
    const row = $(`conversation-${conversation.id}`) ?? rowNode(conversation.id);
    if (list.children[i] !== row) list.insertBefore(row, list.children[i] ?? null);
    const [title, pen, cross] = row.querySelectorAll("button");
    row.conversation = conversation;
    row.classList.toggle("current", conversation === current);
    row.classList.toggle("answering", answers.has(conversation));
    title.textContent = title.title = conversation.title;
    title.ariaLabel = answers.has(conversation) ? `${conversation.title} (is being answered)` : conversation.title;
    title.ariaCurrent = conversation === current ? "true" : null;
    pen.title = pen.ariaLabel = `Rename ${conversation.title}`;
    cross.title = cross.ariaLabel = `Delete ${conversation.title}`;
  });
}

function rename(conversation, row) {
  const field = element("input", { value: conversation.title, ariaLabel: "Title" });
  const end = (keep) => {
    field.onblur = null;
    if (keep && field.value.trim()) conversation.title = field.value.trim();
    field.remove();
    save(conversation);
  };
  field.onblur = () => end(true);
  field.onkeydown = (event) => {
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.stopPropagation();
    end(event.key === "Enter");
    row.querySelector(".title").focus();
  };
  row.prepend(field); // in the place of the title, which style.css hides
  field.select();
}

function remove(conversation) {
  if (!confirm(`Delete "${conversation.title}"?`)) return;
  answers.get(conversation)?.controller.abort();
  conversation.deleted = true;
  drafts.delete(conversation.id);
  localStorage.removeItem(PREFIX + conversation.id);
  if (conversation.id === current.id) show(newConversation());
  else showConversations();
}

function openMenu(open) {
  $("sidebar").classList.toggle("open", open);
  $("menu").setAttribute("aria-expanded", String(open));
}

// ---- Asking

// Once a frame, and for a fifth of the time: of a very long block all is read again whenever it has grown.
function paced(refresh) {
  let isDue = false, pause = 0; // milliseconds
  const run = () => {
    const begin = performance.now();
    isDue = false;
    refresh();
    pause = 4 * (performance.now() - begin);
  };
  return () => {
    if (!isDue) setTimeout(() => requestAnimationFrame(run), pause);
    isDue = true;
  };
}

async function answer(conversation) {
  const { system, ...rest } = parameters();
  const history = historyOf(conversation.messages, system);
  const message = { role: "assistant", content: "", reasoning: "" }, controller = new AbortController();
  const refresh = () => conversation === current && showMessage(message);
  conversation.messages.push(message);
  answers.set(conversation, { controller, message });
  showState();
  showConversations();
  refresh();
  try {
    const isComing = () => answers.get(conversation)?.message === message;
    await readAnswer(message, history, rest, controller.signal, paced(() => isComing() && refresh()));
  } catch (error) {
    message.failed = !controller.signal.aborted;
    if (!message.failed) message.note = "Stopped.";
    else if (error instanceof Failure) message.note = error.message;
    else message.note = "The connection to the server broke off.";
    // Where there is something to leave out, that is what helps.
    message.isFull = message.failed && history.length > 2 && /maximum (context|model) length/.test(message.note);
    if (message.isFull) message.note = "This conversation has become too long for the model's context.";
  }
  answers.delete(conversation);
  showState();
  refresh();
  save(conversation);
}

function showState() {
  const isRunning = answers.has(current);
  log.setAttribute("aria-busy", String(isRunning));
  $("send").textContent = isRunning ? "Stop" : "Send";
}

// Leaves out the messages of the current conversation from the given one on.
function truncate(index) {
  for (const message of current.messages.splice(index)) nodes.get(message)?.remove();
}

function ask(content) {
  if (!current.messages.length && current.title === NEW_TITLE) current.title = content.trimStart().split("\n")[0].slice(0, 200);
  const message = { role: "user", content }, before = current.messages.at(-1);
  current.messages.push(message);
  if (before) showMessage(before); // without what can be done with the last one
  current.time = Date.now();
  showMessage(message);
  save(current);
  answer(current);
}

// As it was typed: the first line keeps its indentation.
const typedIn = (field) => field.value.replace(/^(?:[ \t]*\n)+/, "").trimEnd();

function send() {
  const content = typedIn(input);
  if (!content || answers.has(current)) return;
  input.value = "";
  fit(input);
  ask(content);
}

function answerFrom(message) {
  if (answers.has(current)) return;
  truncate(current.messages.indexOf(message));
  answer(current);
}

// In a new conversation, with the question that found no room in the old one.
function goOnAnew(message) {
  const question = message.content ? "" : current.messages[current.messages.indexOf(message) - 1].content;
  show(newConversation());
  input.value = question;
  fit(input);
  input.focus();
}

// ---- Controls

function fit(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`; // with its border
}

// Safari has ended composing when it tells of the key that ends it.
function isEnter(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
}

$("composer").onsubmit = (event) => {
  event.preventDefault();
  if (answers.has(current)) answers.get(current).controller.abort();
  else send();
};
input.oninput = () => fit(input);
input.onkeydown = (event) => {
  if (!isEnter(event)) return;
  event.preventDefault();
  send();
};
document.onkeydown = (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if ($("sidebar").classList.contains("open")) {
    openMenu(false);
    $("menu").focus();
  } else {
    answers.get(current)?.controller.abort();
  }
};
$("menu").onclick = () => openMenu(!$("sidebar").classList.contains("open"));
$("scrim").onclick = () => openMenu(false);
$("new").onclick = () => {
  show(current.messages.length ? newConversation() : current);
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
window.onpagehide = () => Array.from(answers.keys()).forEach(save);

document.documentElement.dataset.theme = load("nanovllm.theme", "");
const last = load("nanovllm.current", "");
show(storedConversations().find((it) => it.id === last) ?? newConversation());
findModel().catch((error) => tell(error instanceof Failure ? error.message : "The list of models can't be read."));
