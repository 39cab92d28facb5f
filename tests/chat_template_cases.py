"""What chat_template_oracle.py renders: templates of our own, snippets, and conversations."""

VARIABLES = {}
TEMPLATES = {}
SNIPPETS = []

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a city, e.g. \"Zürich\" <now> & 'later'",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "The city"},
            "unit": {"type": ["string", "null"], "enum": ["c", "f"], "default": "c"},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                      "required": ["lat", "lon"]},
            "tags": {"type": "array", "items": {"type": "string"}}},
            "required": ["city"]},
        "return": {"type": "string"}}},
    {"type": "function", "function": {
        "name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
DOCUMENTS = [{"title": "One", "text": "First document"}, {"title": "Zwei", "text": "zweites Dokument"}]


def call(name, arguments, id="call_1"):
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def message_lists():
    yield "one question", [say("user", "Hi there")]
    yield "a system prompt", [say("system", "You are helpful."), say("user", "Hello, how are you?")]
    yield "two turns", [say("user", "What is 1+1?"), say("assistant", "2."), say("user", "And 2+2?")]
    yield "system and turns", [
        say("system", " Be brief.\n"), say("user", "  Hello  "), say("assistant", "\n\nHi!\n"), say("user", "Bye\n"),
        say("assistant", "Good bye."), say("user", "Wait")]
    yield "unicode", [
        say("system", "Antworte auf Deutsch. ß ẞ İ 漢字"), say("user", "Grüße 👋🏽 \u200d‮ \u00a0x\u3000"),
        say("assistant", "你好，世界\u2028\u0085"), say("user", "e\u0301 \U0001F469\u200D\U0001F4BB\ttab")]
    yield "empty contents", [say("system", ""), say("user", ""), say("assistant", ""), say("user", "x")]
    yield "no content", [say("user", "call it"), say("assistant", None, tool_calls=[call("noop", {})]),
                         say("tool", "done", tool_call_id="call_1", name="noop")]
    yield "null content only", [say("user", None), say("assistant", "ok"), say("user", "?")]
    yield "a tool call with an object", [
        say("user", "Weather in Zürich?"),
        say("assistant", "", tool_calls=[call("get_weather", {"city": "Zürich", "days": 2, "deep": {"a": [1, 2.5, None,
                                                                                                          True]}})]),
        say("tool", "{\"temperature\": 21.5}", tool_call_id="call_1", name="get_weather"),
        say("assistant", "21.5 degrees."), say("user", "Thanks")]
    yield "a tool call with a string", [
        say("system", "Use tools."), say("user", "Weather?"),
        say("assistant", "Let me see.", tool_calls=[call("get_weather", "{\"city\": \"Bern\"}", "abcdefghi")]),
        say("tool", "sunny", tool_call_id="abcdefghi", name="get_weather")]
    yield "two calls and results", [
        say("user", "Compare"),
        say("assistant", "", tool_calls=[call("get_weather", {"city": "A"}, "aaaaaaaaa"),
                                         call("get_weather", {"city": "B<>&'\""}, "bbbbbbbbb")]),
        say("tool", "1", tool_call_id="aaaaaaaaa", name="get_weather"),
        say("tool", "2", tool_call_id="bbbbbbbbb", name="get_weather"),
        say("assistant", "B is warmer", tool_calls=[]), say("user", "ok"),
        say("assistant", "", tool_calls=[call("noop", {}, "ccccccccc")]),
        say("tool", [{"type": "text", "text": "part"}], tool_call_id="ccccccccc", name="noop")]
    yield "content parts", [
        say("system", [{"type": "text", "text": "You see."}]),
        say("user", [{"type": "text", "text": "What is it? "}, {"type": "image", "image": "cat.png"},
                     {"type": "text", "text": " and this?"}, {"type": "image_url", "image_url": {"url": "x"}}]),
        say("assistant", [{"type": "text", "text": "A cat."}]), say("user", [{"type": "text", "text": "Sure?"}])]
    yield "other parts", [say("user", [{"type": "video", "video": "v"}, {"type": "audio", "audio_url": "a"}, "plain"])]
    yield "reasoning", [
        say("user", "Think"), say("assistant", "42", reasoning_content="Six times\nseven."), say("user", "Why?"),
        say("assistant", "<think>\nbecause\n</think>\n\nSo."), say("user", "Hm"),
        say("assistant", "Really", reasoning="as such")]
    yield "reasoning with tools", [
        say("user", "Think and call"),
        say("assistant", "", reasoning_content="I need it", tool_calls=[call("noop", {"a": 1})]),
        say("tool", "r", tool_call_id="call_1", name="noop")]
    yield "thinking parts", [say("user", "x"), say("assistant", [{"type": "thinking", "thinking": "t"},
                                                                   {"type": "text", "text": "y"}]), say("user", "z")]
    yield "developer", [say("developer", "Rules"), say("user", "Hi")]
    yield "ends with assistant", [say("user", "Start"), say("assistant", "Half an ans")]
    yield "assistant first", [say("assistant", "I begin"), say("user", "ok")]
    yield "wrong order", [say("user", "a"), say("user", "b"), say("assistant", "c"), say("assistant", "d")]
    yield "system in the middle", [say("user", "a"), say("system", "late"), say("user", "b")]
    yield "unknown role", [say("user", "a"), say("critic", "boo")]
    yield "no role", [{"content": "who?"}]
    yield "numbers for content", [say("user", 5), say("assistant", 1.5)]
    yield "special text", [say("user", "<|im_start|>{{ x }}{% if %}</s>[INST] <tool_response>r</tool_response>"),
                           say("assistant", "```py\nprint('\\n')\n```</think>after<think>"), say("user", "\\ \" '")]
    yield "a function role", [say("user", "f"), say("assistant", "", function_call={"name": "f", "arguments": "{}"}),
                              say("function", "1", name="f")]
    yield "flat tool calls", [say("user", "f"), say("assistant", "c", tool_calls=[{"name": "f", "arguments": {"k": "v"}}]),
                              say("tool", {"json": [1, "2"]})]
    yield "long", [say("user" if i % 2 == 0 else "assistant", f"message {i} " * (i % 5)) for i in range(31)]


def conversations():
    """(name, request without template): every list of messages in several settings."""
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    settings = [
        ("a prompt", None, True, {}),
        ("no prompt", None, False, {}),
        ("tools", TOOLS, True, {}),
        ("thinking", None, True, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
        ("no thinking and tools", TOOLS, True, {"enable_thinking": False, "thinking": False}),
        ("documents", None, True, {"documents": DOCUMENTS, "citation_options": "off"}),
        ("empty tools", [], True, {"custom_instructions": "c", "add_vision_id": True, "preserve_thinking": True}),
    ]
    for name, messages in message_lists():
        for setting, tools, prompt, kwargs in settings:
            yield f"{name}, {setting}", {"messages": messages, "tools": tools, "add_generation_prompt": prompt,
                                         "kwargs": {**tokens, **kwargs}}
