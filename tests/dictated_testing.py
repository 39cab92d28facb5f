"""A server whose model says what a script tells it (tests/dictated_server.cc), and readers of the three APIs' answers."""
import json
import os
import shutil
import tempfile

from serve_testing import MODEL, Server, ServeTest, event_stream

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DICTATED = os.path.join(os.environ.get("NANOVLLM_BIN", os.path.join(ROOT, "build", "tests")), "dictated_server")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
BLOCK = 256  # tokens


def make_model(folder, template="Qwen-Qwen3-0.6B"):
    """What a server reads of a model but its weights: the demo model's tokenizer with Qwen3's tags, a published template."""
    shutil.copy(os.path.join(MODEL, "generation_config.json"), folder)
    tokenizer = read_json(os.path.join(MODEL, "tokenizer.json"))
    first = max(token["id"] for token in tokenizer["added_tokens"]) + 1
    for i, tag in enumerate(TAGS):
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": first + i, "content": tag, "special": False})
    config = read_json(os.path.join(MODEL, "config.json"))
    config.update(vocab_size=first + len(TAGS), max_position_embeddings=1 << 17)
    settings = read_json(os.path.join(MODEL, "tokenizer_config.json"))
    with open(os.path.join(ROOT, "tests/data/chat_templates", template + ".jinja"), encoding="utf-8") as file:
        settings["chat_template"] = file.read()
    for name, value in (("tokenizer.json", tokenizer), ("config.json", config), ("tokenizer_config.json", settings)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file)
    return folder


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def call(name, **arguments):
    """A call of a tool as Qwen3 writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Dictated(Server):
    """Its model says what `say` was given, and what it was asked is in `prompts()`."""

    def __init__(self, *args, template="Qwen-Qwen3-0.6B", **kwargs):
        self.folder = tempfile.TemporaryDirectory()
        self.model = make_model(self.folder.name, template)
        self.say("Good.")
        super().__init__(*args, command=[DICTATED, self.model, "--script", self.path("script.json"), "--prompts", self.path("prompts.jsonl")], **kwargs)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def say(self, *entries):
        """Texts or entries of the script; the last one whose `when` is in a prompt is its answer. Without a thought it has an
        empty one, as a model of Qwen3's parser must: what has no end of a thought is all thought, which `thinks` is for."""
        entries = [{"say": entry} if isinstance(entry, str) else dict(entry) for entry in entries]
        for entry in entries:
            if "</think>" not in entry["say"] and not entry.pop("thinks", False):
                entry["say"] = "<think></think>" + entry["say"]
        with open(self.path("script.new"), "w", encoding="utf-8") as file:
            json.dump(entries, file)
        os.replace(self.path("script.new"), self.path("script.json"))

    def stream(self, path, body, headers=None):
        """Yields the data of the events; their names must be their types."""
        for name, event in event_stream(self, path, body, headers):
            if name is not None and event["type"] != name:
                raise AssertionError(f"{name} is {event!r}")
            yield event

    def prompts(self, having=""):
        """{"ids", "text"} of each prompt so far that has a text."""
        if not os.path.exists(self.path("prompts.jsonl")):
            return []
        with open(self.path("prompts.jsonl"), encoding="utf-8") as file:
            return [prompt for prompt in map(json.loads, file) if having in prompt["text"]]

    def close(self):
        super().close()
        self.folder.cleanup()


class DictatedTest(ServeTest):
    def serve(self, *args, **kwargs):
        server = Dictated(*args, **kwargs)
        self.addCleanup(server.close)
        return server


def num_shared(one, other):
    """Tokens with which both begin."""
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


class Api:
    """A session of one of the APIs: what is sent next, and what came, in the same words for all three."""

    def __init__(self, server, tools=(), system="", model="dictated"):
        self.server, self.tools, self.system, self.model, self.items = server, list(tools), system, model, []

    def ask(self, text=None, on_event=None):
        """Streams the answer to the session so far and one more text of its user, and takes it into the session."""
        if text is not None:
            self.items.append({"role": "user", "content": text})
        events = []
        for event in self.server.stream(self.path, self.body()):
            events.append(event)
            if on_event is not None:
                on_event(len(events))
        answer = self.read(events)
        self.items += answer["items"]
        return answer


class Chat(Api):
    path = "/v1/chat/completions"

    def body(self):
        system = [{"role": "system", "content": self.system}] if self.system else []
        tools = {"tools": [{"type": "function", "function": tool} for tool in self.tools]} if self.tools else {}
        return {"model": self.model, "messages": system + self.items, "max_tokens": 4000, "stream_options": {"include_usage": True}, **tools}

    def result(self, given, text):
        self.items.append({"role": "tool", "tool_call_id": given["id"], "content": text})

    @staticmethod
    def read(events):
        message, usage, end, error = {"role": "assistant", "content": ""}, None, None, None
        for event in events:
            error = error or (event.get("error") if isinstance(event, dict) else None)
            usage = usage if event == "[DONE]" else event.get("usage") or usage
            for choice in [] if event == "[DONE]" or error else event["choices"]:
                end = choice.get("finish_reason") or end
                delta = choice["delta"]
                message["content"] += delta.get("content") or ""
                if delta.get("reasoning") or delta.get("reasoning_content"):
                    message["reasoning_content"] = message.get("reasoning_content", "") + (delta.get("reasoning") or delta["reasoning_content"])
                for piece in delta.get("tool_calls") or []:
                    calls = message.setdefault("tool_calls", [])
                    if piece["index"] == len(calls):
                        calls.append({"id": piece["id"], "type": "function", "function": {"name": "", "arguments": ""}})
                    calls[piece["index"]]["function"]["name"] += piece["function"].get("name") or ""
                    calls[piece["index"]]["function"]["arguments"] += piece["function"].get("arguments") or ""
        return {"text": message["content"], "thought": message.get("reasoning_content", ""), "end": end, "error": error, "items": [message],
                "whole": events[-1:] == ["[DONE]"],
                "calls": [{"id": one["id"], "name": one["function"]["name"], "input": json.loads(one["function"]["arguments"])} for one in message.get("tool_calls", [])],
                "prompt": usage and usage["prompt_tokens"], "cached": usage and (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
                "output": usage and usage["completion_tokens"]}


class Responses(Api):
    path = "/v1/responses"

    def body(self):
        developer = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": self.system}]}] if self.system else []
        return {"model": self.model, "input": developer + self.items, "store": False, "include": ["reasoning.encrypted_content"],
                "tools": [{"type": "function", "strict": False, **tool} for tool in self.tools] + [{"type": "web_search"}]}

    def result(self, given, text):
        self.items.append({"type": "function_call_output", "call_id": given["id"], "output": text})

    @staticmethod
    def read(events):
        items, texts, final, error = [], {}, None, None
        for number, event in enumerate(event for event in events if event != "[DONE]"):
            assert event["sequence_number"] == number, event
            if event["type"] == "response.output_item.done":
                items.append(event["item"])
            elif event["type"].endswith(".delta"):
                key = event["output_index"], event["type"]
                texts[key] = texts.get(key, "") + event["delta"]
            elif event["type"] in ("response.completed", "response.incomplete", "response.failed"):
                assert final is None, "ended twice"
                final, error = event["response"], event["response"].get("error")
            elif event["type"] == "error":
                error = event
        for i, item in enumerate(items):  # the pieces add up to the whole
            pieces = {kind.split(".")[1]: text for (at, kind), text in texts.items() if at == i}
            whole = {"message": lambda item: {"output_text": item["content"][0]["text"]}, "reasoning": lambda item: {"reasoning_text": item["content"][0]["text"]},
                     "function_call": lambda item: {"function_call_arguments": item["arguments"]} if item["arguments"] else {},
                     "custom_tool_call": lambda item: {"custom_tool_call_input": item["input"]} if item["input"] else {}}[item["type"]](item)
            assert pieces == whole, (pieces, whole)
        usage = (final or {}).get("usage")
        return {"text": "".join(item["content"][0]["text"] for item in items if item["type"] == "message"),
                "thought": "".join(item["content"][0]["text"] for item in items if item["type"] == "reasoning"), "end": final and final["status"], "error": error,
                "items": items, "whole": final is not None and final["status"] != "failed",
                "calls": [{"id": item["call_id"], "name": item["name"], "input": json.loads(item["arguments"])} for item in items if item["type"] == "function_call"],
                "prompt": usage and usage["input_tokens"], "cached": usage and usage["input_tokens_details"]["cached_tokens"], "output": usage and usage["output_tokens"]}


class Messages(Api):
    path = "/v1/messages"

    def body(self):
        # What Claude Code does: a header that differs from session to session, a mark that wanders, lists that become texts.
        messages = [dict(message) for message in self.items]
        for message in messages[:-1]:
            content = message["content"]
            if isinstance(content, list) and len(content) == 1 and content[0]["type"] == "text":
                message["content"] = content[0]["text"]
        if isinstance(messages[-1]["content"], str):
            messages[-1]["content"] = [{"type": "text", "text": messages[-1]["content"], "cache_control": {"type": "ephemeral"}}]
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.332.{id(self) % 4096:03x}; cc_entrypoint=cli;"},
                  {"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}}]
        return {"model": self.model, "max_tokens": 32000, "system": system, "messages": messages,
                "tools": [{"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]} for tool in self.tools]}

    def result(self, given, text):
        block = {"type": "tool_result", "tool_use_id": given["id"], "content": text}
        if self.items[-1]["role"] == "user":
            self.items[-1]["content"].append(block)
        else:
            self.items.append({"role": "user", "content": [block]})

    @staticmethod
    def read(events):
        blocks, usage, end, error, stopped, whole = [], {}, None, None, set(), False
        for event in events:
            kind = event["type"]
            if kind == "message_start":
                usage = dict(event["message"]["usage"])
            elif kind == "content_block_start":
                assert event["index"] == len(blocks), event
                blocks.append({**event["content_block"], **({"input": ""} if event["content_block"]["type"] == "tool_use" else {})})
            elif kind == "content_block_delta":
                delta = event["delta"]
                name, key = {"thinking_delta": ("thinking", "thinking"), "signature_delta": ("signature", "signature"), "text_delta": ("text", "text"),
                             "input_json_delta": ("input", "partial_json")}[delta["type"]]
                assert event["index"] not in stopped
                blocks[event["index"]][name] += delta[key]
            elif kind == "content_block_stop":
                stopped.add(event["index"])
            elif kind == "message_delta":
                end = event["delta"]["stop_reason"]
                usage.update(event["usage"])
            elif kind == "message_stop":
                whole = True
            elif kind == "error":
                error = event["error"]
        assert error or len(stopped) == len(blocks), events[-3:]
        for block in blocks:
            if block["type"] == "tool_use" and not error:
                block["input"] = json.loads(block["input"] or "{}")
        return {"text": "".join(block["text"] for block in blocks if block["type"] == "text"), "end": end, "error": error, "whole": whole,
                "thought": "".join(block["thinking"] for block in blocks if block["type"] == "thinking"), "items": [{"role": "assistant", "content": blocks}],
                "calls": [{"id": block["id"], "name": block["name"], "input": block["input"]} for block in blocks if block["type"] == "tool_use"],
                "prompt": usage.get("input_tokens", 0) + usage.get("cache_read_input_tokens", 0) + usage.get("cache_creation_input_tokens", 0),
                "cached": usage.get("cache_read_input_tokens", 0), "output": usage.get("output_tokens")}


APIS = (Chat, Responses, Messages)
