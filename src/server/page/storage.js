// What the browser keeps: one entry a conversation, so that two tabs do not overwrite each other.
"use strict";

const $ = (id) => document.getElementById(id);
const NEW_TITLE = "New conversation";
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

function storedConversations() {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX))
      .map((key) => load(key, null)).filter((it) => it?.messages).sort((a, b) => b.time - a.time);
  } catch {
    return [];
  }
}

function newConversation() {
  const id = Array.from(crypto.getRandomValues(new Uint32Array(2)), (n) => n.toString(36)).join("");
  return { id, title: NEW_TITLE, time: Date.now(), messages: [] };
}
