"""Calls that must come, calls of strict tools, and what may come beside them: the demo model under every parser's syntax, and a
dictated one that thinks."""
import json
import unittest

from dictated_testing import APIS, Chat, Dictated, Messages, Responses, call
from serve_testing import SANITIZED, Server

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 8},
            "days": {"type": "integer", "minimum": 1, "maximum": 99},
            "detailed": {"type": "boolean"},
            "kind": {"enum": ["rain", "wind"]},
        },
        "required": ["city", "detailed"],
        "additionalProperties": False,
    }}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}},
]
PARSERS = ["hermes", "llama3_json", "mistral", "qwen3_coder", "glm45", "granite", "olmo3", "openai"]
HELLO = [{"role": "user", "content": "Hello."}]


def named(name):
    return {"type": "function", "function": {"name": name}}


class CallsTest(unittest.TestCase):
    def fits(self, name, arguments):
        value = json.loads(arguments)
        if name == "now":
            self.assertEqual(value, {})
            return
        self.assertEqual(name, "get_weather")
        self.assertLessEqual({"city", "detailed"}, set(value))
        self.assertLessEqual(set(value), {"city", "days", "detailed", "kind"})
        self.assertLessEqual(len(value["city"]), 8)
        self.assertIsInstance(value["detailed"], bool)
        self.assertIn(value.get("kind", "rain"), ("rain", "wind"))
        self.assertIn(value.get("days", 1), range(1, 100))

    def calls(self, choice):
        calls = [one["function"] for one in choice["message"].get("tool_calls") or []]
        for one in calls:
            self.fits(one["name"], one["arguments"])
        return calls


class EveryParser(CallsTest):
    def test_calls_come_where_they_must_and_fit(self):
        for parser in PARSERS[:3] if SANITIZED else PARSERS:
            flags = ["--reasoning-parser", "openai_gptoss"] if parser == "openai" else []
            server = Server("--tool-call-parser", parser, *flags)
            self.addCleanup(server.close)
            body = {"messages": HELLO, "tools": TOOLS, "max_tokens": 400, "temperature": 1, "seed": 7, "n": 3}
            with self.subTest(parser=parser):
                for choice, reason in (("required", "tool_calls"), (named("get_weather"), "stop")):
                    asked = {**body, "tool_choice": choice, "parallel_tool_calls": False}
                    answer = server.post("/v1/chat/completions", asked)
                    self.assertEqual(answer.status, 200, answer.text)
                    self.assertTrue(any(one["finish_reason"] == reason for one in answer.json["choices"]), answer.text)
                    for one in answer.json["choices"]:
                        # A model of random words may think for long.
                        if one["finish_reason"] == "length" and parser == "openai":
                            continue
                        self.assertEqual(one["finish_reason"], reason, one)
                        self.assertEqual(len(self.calls(one)), 1, one)
                        self.assertFalse(one["message"]["content"], one)
                        if reason == "stop":
                            self.assertEqual(self.calls(one)[0]["name"], "get_weather")
            server.close()

    def test_every_api_has_them(self):
        server = Server("--tool-call-parser", "hermes", "--served-model-name", "demo")
        self.addCleanup(server.close)
        flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
        for choice in ("required", {"type": "function", "name": "get_weather"},
                       {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}):
            answer = server.post("/v1/responses", {"input": "Hello.", "tools": flat, "tool_choice": choice, "parallel_tool_calls": False,
                                                   "max_output_tokens": 400, "temperature": 1, "seed": 3})
            self.assertEqual(answer.status, 200, answer.text)
            (item,) = answer.json["output"]
            self.assertEqual(item["type"], "function_call")
            self.fits(item["name"], item["arguments"])
        tools = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS]
        for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}):
            answer = server.post("/v1/messages", {"model": "demo", "messages": HELLO, "tools": tools, "tool_choice": choice,
                                                  "max_tokens": 400, "temperature": 1})
            self.assertEqual(answer.status, 200, answer.text)
            self.assertEqual(answer.json["stop_reason"], "tool_use")
            (block,) = answer.json["content"]
            self.assertEqual(block["type"], "tool_use")
            self.fits(block["name"], json.dumps(block["input"]))
        # What can't be enforced is told with the function's name.
        function = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"not": {}}}}}
        body = {"messages": HELLO, "tools": [{"type": "function", "function": function}], "max_tokens": 5}
        self.assertEqual(server.post("/v1/chat/completions", body).status, 200)
        for more in ({"tool_choice": "required"}, {"tools": [{"type": "function", "function": {**function, "strict": True}}]}):
            answer = server.post("/v1/chat/completions", {**body, **more})
            self.assertEqual(answer.status, 400)
            self.assertEqual(answer.json["error"]["param"], "tools")
            self.assertIn('The parameters of the function "f" can\'t be enforced: JSON schema at /properties/x: not', answer.json["error"]["message"])
        for parameters, what in (({"type": "string"}, 'JSON schema: type must be "object", got "string".'), ({"minProperties": 2, "maxProperties": 1}, "")):
            tool = {"type": "function", "function": {"name": "g", "parameters": parameters}}
            self.assertEqual(server.post("/v1/chat/completions", {**body, "tools": [tool]}).status, 200)
            answer = server.post("/v1/chat/completions", {**body, "tools": [tool], "tool_choice": "required"})
            self.assertEqual((answer.status, answer.json["error"]["param"]), (400, "tools"), answer.text)
            self.assertIn(f'The parameters of the function "g" can\'t be enforced: {what}', answer.json["error"]["message"])
        answer = server.post("/v1/chat/completions", {**body, "tool_choice": named("g")})
        self.assertEqual((answer.status, answer.json["error"]["param"]), (400, "tool_choice"), answer.text)
        self.assertIn('The tool "g" specified', answer.json["error"]["message"])


class Thinking(CallsTest):
    @classmethod
    def setUpClass(cls):
        cls.server = Dictated()

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def ask(self, say, stream=False, **more):
        self.server.say(say)
        body = {"messages": HELLO, "tools": TOOLS, "max_tokens": 300, "stream": stream, **more}
        if not stream:
            answer = self.server.post("/v1/chat/completions", body)
            self.assertEqual(answer.status, 200, answer.text)
            return answer.json["choices"][0]
        message, reason = {"reasoning": "", "content": "", "tool_calls": []}, None
        for event in self.server.stream("/v1/chat/completions", body):
            if event == "[DONE]":
                continue
            choice = event["choices"][0]
            reason = choice["finish_reason"] or reason
            for key in ("reasoning", "content"):
                message[key] += choice["delta"].get(key) or ""
            for part in choice["delta"].get("tool_calls", []):
                if part["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"function": {"name": part["function"]["name"], "arguments": ""}})
                message["tool_calls"][part["index"]]["function"]["arguments"] += part["function"].get("arguments") or ""
        return {"message": message, "finish_reason": reason}

    def test_a_call_follows_a_thought_that_is_free(self):
        thought = 'Is it <b>cold</b>? {"name":'
        for stream in (False, True):
            for separator in ("\n\n", ""):
                choice = self.ask(f"<think>{thought}</think>{separator}" + call("get_weather", city="Oslo", detailed=True), stream, tool_choice="required")
                self.assertEqual(choice["message"]["reasoning"], thought)
                self.assertEqual(choice["finish_reason"], "tool_calls")
                self.assertEqual([json.loads(one["arguments"]) for one in self.calls(choice)], [{"city": "Oslo", "detailed": True}])
                self.assertFalse(choice["message"]["content"])

    def test_a_text_that_is_not_asked_for_becomes_a_call(self):
        for stream in (False, True):
            choice = self.ask("<think>Hm.</think>\n\nI'd rather not.", stream, tool_choice="required", parallel_tool_calls=False)
            self.assertEqual(choice["message"]["reasoning"], "Hm.")
            self.assertEqual(len(self.calls(choice)), 1)
            self.assertEqual(choice["finish_reason"], "tool_calls")

    def test_the_model_ends_nothing_within_its_thought(self):
        schema = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"], "additionalProperties": False}
        asks = [
            {"tool_choice": "required", "parallel_tool_calls": False},
            {"tool_choice": named("now")},
            {"tools": None, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
            {"tools": None, "structured_outputs": {"choice": ["yes", "no"]}},
            {"tools": None, "structured_outputs": {"regex": "[ab]{3}"}},
        ]
        for stream in (False, True):
            for asked in asks:
                with self.subTest(stream=stream, asked=asked):
                    choice = self.ask({"say": "<think>Hm.", "thinks": True}, stream, max_tokens=30, **asked)
                    self.assertEqual(choice["finish_reason"], "length", choice)
                    self.assertTrue(choice["message"]["reasoning"].startswith("Hm."), choice)
                    choice = self.ask({"say": "<think>Hm.", "thinks": True}, stream, thinking_token_budget=6, **asked)
                    self.assertTrue(choice["message"]["reasoning"].startswith("Hm."), choice)
                    self.assertIn(choice["finish_reason"], ("stop", "tool_calls"), choice)
                    self.assertTrue(choice["message"]["content"] or self.calls(choice), choice)
            choice = self.ask({"say": "<think>Hm.", "thinks": True}, stream)
            self.assertEqual((choice["message"]["reasoning"], choice["finish_reason"]), ("Hm.", "stop"))

    def test_a_call_that_is_cut_off_is_no_text(self):
        said = "<think>Hm.</think>\n\n" + call("get_weather", city="Oslo", detailed=True) + "\n" + call("now")
        for stream in (False, True):
            numbers = set()
            for most in range(1, 121):
                choice = self.ask(said, stream, tool_choice="required", max_tokens=most)
                self.assertFalse(choice["message"]["content"], (most, choice))
                self.assertIn(choice["finish_reason"], ("length", "tool_calls"))
                numbers.add(len(choice["message"].get("tool_calls") or []))
            self.assertEqual(numbers, {0, 1, 2})

    def test_strict_tools_fit_and_others_are_left_alone(self):
        strict = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}, TOOLS[1]]
        wrong = "<think>Hm.</think>\n\nI look.\n" + call("get_weather", town="Oslo")
        (one,) = [one["function"] for one in self.ask(wrong)["message"]["tool_calls"]]
        self.assertEqual(json.loads(one["arguments"]), {"town": "Oslo"})
        choice = self.ask(wrong, tools=strict)
        self.assertEqual(choice["message"]["content"].strip(), "I look.")
        self.assertEqual(len(self.calls(choice)), 1)
        choice = self.ask("<think>Hm.</think>\n\nNo call, <tool_call is text.", tools=strict)
        self.assertEqual(choice["message"]["content"].strip(), "No call, <tool_call is text.")
        self.assertEqual(choice["finish_reason"], "stop")

    def test_beside_a_format_the_answer_follows_it_or_is_a_call(self):
        schema = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"], "additionalProperties": False}
        asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
        choice = self.ask('<think>Hm.</think>{"warm": true}', **asked)
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), ('{"warm": true}', "stop"))
        choice = self.ask("<think>Hm.</think>" + call("now"), **asked)
        self.assertEqual([one["name"] for one in self.calls(choice)], ["now"])
        choice = self.ask('<think>Hm.</think>{"warm": 7}', **asked)
        self.assertIn(json.loads(choice["message"]["content"]), ({"warm": True}, {"warm": False}))

    # A thought, tools, a format and a stream in one request.

    WARM = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"], "additionalProperties": False}
    FORMATS = {Chat: {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": WARM}}},
               Responses: {"text": {"format": {"type": "json_schema", "name": "n", "schema": WARM}}},
               Messages: {"output_config": {"format": {"type": "json_schema", "schema": WARM}}}}
    THOUGHT = 'Is it <b>warm</b>? {"warm": 7} or {"name":'

    def streamed(self, api, say, **fields):
        """What comes where a model thinks, and then would say this; all tools are strict."""
        self.server.say(f"<think>{self.THOUGHT}</think>{say}")
        session = api(self.server, tools=[{"description": "", "strict": True, **tool["function"]} for tool in TOOLS])
        if api is Messages:
            fields["tools"] = [{"name": tool["function"]["name"], "strict": True, "input_schema": tool["function"]["parameters"]} for tool in TOOLS]
        body = session.body
        session.body = lambda: {**body(), **self.FORMATS[api], **fields}
        answer = session.ask("Is it warm in Oslo?")
        self.assertTrue(answer["whole"], answer)
        return answer

    def test_behind_a_thought_a_stream_follows_its_format(self):
        for api in APIS:
            for said in ('{"warm": true}', "\n\n{\n  \"warm\": false\n}", '{"warm": 7}', "Rather warm.", ""):
                with self.subTest(api=api.__name__, said=said):
                    answer = self.streamed(api, said)
                    self.assertEqual((answer["thought"], answer["calls"]), (self.THOUGHT, []))
                    self.assertIn(json.loads(answer["text"]), ({"warm": True}, {"warm": False}))
                    if said.startswith("{") and said.endswith("e}"):
                        self.assertEqual(answer["text"], said)
                    self.assertIn(answer["end"], ("stop", "completed", "end_turn"))

    def test_behind_a_thought_a_stream_is_calls_that_fit(self):
        for api in APIS:
            for said in (call("get_weather", city="Oslo", detailed=True), call("get_weather", town="Oslo"), call("now") + "\n" + call("now")):
                with self.subTest(api=api.__name__, said=said):
                    answer = self.streamed(api, said)
                    self.assertEqual((answer["thought"], answer["text"].strip()), (self.THOUGHT, ""))
                    self.assertEqual(len(answer["calls"]), said.count("<tool_call>"))
                    for one in answer["calls"]:
                        self.fits(one["name"], json.dumps(one["input"]))
                    if '"city"' in said:
                        self.assertEqual(answer["calls"][0]["input"], {"city": "Oslo", "detailed": True})
                    self.assertIn(answer["end"], ("tool_calls", "completed", "tool_use"))

    def test_a_format_is_followed_too_where_a_thought_is_cut_off(self):
        answer = self.streamed(Chat, '{"warm": true}', thinking_token_budget=4)
        self.assertTrue(self.THOUGHT.startswith(answer["thought"]) and len(answer["thought"]) < len(self.THOUGHT), answer)
        self.assertTrue(answer["calls"] or json.loads(answer["text"]) in ({"warm": True}, {"warm": False}), answer)
        answer = self.streamed(Chat, "No.", thinking_token_budget=4, tool_choice="required", parallel_tool_calls=False)
        self.assertEqual((len(answer["calls"]), answer["text"]), (1, ""))
        self.fits(answer["calls"][0]["name"], json.dumps(answer["calls"][0]["input"]))


if __name__ == "__main__":
    unittest.main()
