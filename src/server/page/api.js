// Talks to the server that this page comes from. Addresses are relative, so that a prefix is kept.
"use strict";

class Failure extends Error { // with a sentence for the user
  constructor(sentence, status) {
    super(sentence);
    this.status = status; // of the server's answer, where there was one
  }
}

const server = { model: "", contextLength: 0, key: load("nanovllm.key", "", "sessionStorage") };

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

let asking = null; // of several requests at once one asks

async function renewKey() {
  const hint = server.key ? "The server does not know this key." : "It is kept until this tab is closed.";
  asking ??= askForKey(hint).finally(() => { asking = null; });
  const key = await asking;
  if (!key) throw new Failure("The server wants an API key.");
  server.key = key;
  store("nanovllm.key", key, "sessionStorage");
}

async function request(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers, ...(server.key && { Authorization: `Bearer ${server.key}` }) };
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Failure("The server can't be reached: is it running, and are you online?");
    }
    if (response.ok) return response;
    const { status } = response;
    if (status !== 401) {
      const answer = await response.json().catch(() => null);
      throw new Failure(answer?.error?.message || `The server answered with status ${status}.`, status);
    }
    await renewKey();
  }
}

async function findModel() {
  const { data } = await (await request("v1/models")).json();
  server.model = data?.[0]?.id ?? "";
  server.contextLength = data?.[0]?.max_model_len ?? 0;
  $("model").textContent = $("model").title = server.model || "No model";
  document.title = server.model ? `${server.model} – nanovllm` : "nanovllm";
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

// What the model gets: without questions that got no answer, as many templates want the roles to take turns.
function historyOf(messages, system) {
  const history = messages.filter((it, i) => it.content && messages[i + 1]?.content !== "")
    .map(({ role, content }) => ({ role, content }));
  return system ? [{ role: "system", content: system }, ...history] : history;
}

function addCalls(message, deltas) {
  for (const { index = 0, function: part = {} } of deltas) {
    message.calls ??= [];
    const call = message.calls[index] ??= { name: "", arguments: "" };
    call.name += part.name ?? "";
    call.arguments += part.arguments ?? "";
  }
}

// Adds the answer to `message` as it comes; `refresh` is called after each piece.
async function readAnswer(message, history, rest, signal, refresh) {
  if (!server.model) await findModel();
  const stream = { stream: true, stream_options: { include_usage: true } };
  const ask = () => request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model: server.model, messages: history, ...stream, ...rest }),
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
    addCalls(message, choice?.delta?.tool_calls ?? []);
    if (choice?.finish_reason === "length") message.note = "Cut off: an answer may have no more tokens.";
    if (choice?.finish_reason === "abort") message.note = "The server stopped the answer.";
    const { contextLength } = server;
    if (message.note && contextLength && event.usage?.total_tokens >= contextLength) {
      message.isFull = true;
      const number = contextLength.toLocaleString("en");
      message.note = `Cut off: the conversation fills the model's context of ${number} tokens.`;
    }
    refresh();
  }
}
