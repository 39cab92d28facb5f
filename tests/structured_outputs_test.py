"""Outputs that must follow a schema, an expression, a choice or a grammar: the command line and every API, with the demo model."""
import json
import pathlib
import string
import tempfile
import threading
import time
import unittest

from cli_testing import MODEL, lines, run
from serve_testing import SANITIZED, Server, event_stream, in_parallel

SCHEMA = {
    "type": "object",
    "properties": {"z": {"type": "boolean"}, "name": {"enum": ["cat", "a dog"]}, "legs": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["z", "name", "legs"],
    "additionalProperties": False,
}
ROUNDED = 123456789012345678901234567890  # no double
GRAMMAR = 'root ::= "the " ("cat" | "dog") "s"? "."'
ASK = ["--max-tokens", "100", "--temperature", "1", "--json", "-q"]


def follows(text):
    """The value, where the text is what the schema asks for."""
    value = json.loads(text)
    assert list(value) == ["z", "name", "legs"], text
    assert isinstance(value["z"], bool) and value["name"] in ("cat", "a dog") and 0 <= value["legs"] <= 99, text
    return value


class CommandLine(unittest.TestCase):
    def texts(self, *flags, prompts=("Once", "The")):
        result = run("generate", MODEL, *ASK, *flags, *(word for prompt in prompts for word in ("-p", prompt)))
        self.assertEqual(result.returncode, 0, result.stderr)
        answers = lines(result.stdout)
        self.assertEqual({answer["finish_reason"] for answer in answers}, {"stop"})
        return [answer["text"] for answer in answers]

    def test_every_flag_binds_the_output(self):
        for text in self.texts("--choice", "yes", "--choice", "no"):
            self.assertIn(text, ("yes", "no"))
        for text in self.texts("--regex", "[a-f]{3}-[0-9]{2}"):
            self.assertRegex(text, r"\A[a-f]{3}-[0-9]{2}\Z")
        with tempfile.TemporaryDirectory() as folder:
            schema, grammar = pathlib.Path(folder, "schema.json"), pathlib.Path(folder, "animal.gbnf")
            schema.write_text(json.dumps(SCHEMA), encoding="utf-8")
            grammar.write_text(GRAMMAR, encoding="utf-8")
            marked = pathlib.Path(folder, "marked.gbnf")
            marked.write_text(GRAMMAR, encoding="utf-8-sig")
            for flag, value in [("--json-schema", schema), ("--json-schema", json.dumps(SCHEMA)), ("-jf", schema), ("-j", json.dumps(SCHEMA))]:
                for text in self.texts(flag, value):
                    follows(text)
            for flag, value in [("--grammar-file", grammar), ("--grammar-file", marked), ("--grammar-file", GRAMMAR), ("--grammar", GRAMMAR)]:
                for text in self.texts(flag, value):
                    self.assertRegex(text, r"\Athe (cat|dog)s?\.\Z")

    def test_lines_say_it_too(self):
        requests = [
            {"prompt": "a", "sampling_params": {"structured_outputs": {"choice": ["x y"]}}},
            {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            {"prompt": "a", "sampling_params": {"structured_outputs": {"json": json.dumps(SCHEMA), "disable_any_whitespace": True}}},
            {"prompt": "a", "sampling_params": {"structured_outputs": {"regex": "("}}},
            {"prompt": "a", "response_format": {"type": "json_object"}, "sampling_params": {"structured_outputs": {"regex": "a"}}},
            {"prompt": "a"},
            {"prompt": "a", "sampling_params": {"structured_outputs": {"json": {"const": ROUNDED}}}},
            {"prompt": "a", "sampling_params": {"structured_outputs": {"json": {"const": 10**23}}}},
        ]
        result = run("generate", MODEL, *ASK, "--choice", "all others", "--input", "-", stdin="\n".join(map(json.dumps, requests)))
        self.assertEqual(result.returncode, 3, result.stderr)
        answers = sorted(lines(result.stdout), key=lambda line: line["index"])
        self.assertEqual(answers[0]["text"], "x y")
        follows(answers[1]["text"])
        self.assertNotIn("\n", answers[2]["text"])
        follows(answers[2]["text"])
        self.assertIn("(at position 0)", answers[3]["error"])
        self.assertIn("leave one of them out", answers[4]["error"])
        self.assertEqual(answers[5]["text"], "all others")
        self.assertIn(f"the number {ROUNDED} at /sampling_params/structured_outputs/json/const can't be held exactly", answers[6]["error"])
        self.assertEqual(float(answers[7]["text"]), 1e23)

    def test_wrong_flags_are_told_before_a_model_is_looked_for(self):
        cases = [
            (["--regex", "a(b"], 2, "(at position 1)"),
            (["--regex", "a", "--choice", "b"], 2, "multiple are specified: regex, choice."),
            (["--grammar-file", "root ::= other"], 2, 'the rule "other" is not defined'),
            (["--json-schema", '{"type": 3}'], 2, "type"),
            (["--json-schema", '{"not": {}}'], 1, "not can't be enforced"),
            (["--json-schema", "/nowhere.json"], 2, "/nowhere.json"),
            (["--json-schema", "[]"], 2, "expected an object, true or false"),
            (["--json-schema", ""], 2, "the JSON schema: not valid JSON"),
            (["--json-schema", f'{{"enum": [1, {ROUNDED}]}}'], 2, f"the number {ROUNDED} at /enum/1 can't be held exactly; use fewer digits"),
        ]
        for command in ("generate", "chat"):
            for flags, status, sentence in cases:
                result = run(command, "/no/model", *flags, "-p" if command == "generate" else "-m", "a")
                self.assertEqual((result.returncode, result.stdout), (status, ""), (flags, result.stderr))
                self.assertIn(sentence, result.stderr)
                self.assertNotIn("/no/model", result.stderr)

    def test_a_chat_is_bound_too(self):
        result = run("chat", MODEL, "--choice", "well", "-m", "Hello")
        self.assertEqual((result.returncode, result.stdout), (0, "well\n"), result.stderr)
        result = run("chat", MODEL, "--choice", "well", stdin='a\n/params structured_outputs={"regex":"[xy]z"}\nb\n/params\n')
        self.assertEqual(result.returncode, 0, result.stderr)
        first, *shown, second, params, _ = result.stdout.splitlines()
        self.assertEqual(first, "well")
        self.assertRegex(second, r"\A[xy]z\Z", result.stdout)
        self.assertIn('structured_outputs={"regex":"[xy]z"}', params)

    def test_what_is_not_enforced_is_told_once(self):
        schema = '{"type": "string", "maxLength": 2, "format": "color"}'
        result = run("generate", MODEL, *ASK, "--json-schema", schema, "-p", "a", "-p", "b")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count('nanovllm: JSON schema: the format "color" is not enforced\n'), 1, result.stderr)


class Serving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)

    def asked(self, path, body):
        """The text of an answer, which is the same streamed and whole."""
        whole = self.server.post(path, body)
        self.assertEqual(whole.status, 200, whole.text)
        events = [event for _, event in event_stream(self.server, path, body) if event != "[DONE]"]
        if path == "/v1/responses":
            text = "".join(part["text"] for item in whole.json["output"] for part in item.get("content", []) if part["type"] == "output_text")
            streamed = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        elif path == "/v1/messages":
            text = "".join(block.get("text", "") for block in whole.json["content"])
            streamed = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
        else:
            text_of = lambda choice: choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""
            text = text_of(whole.json["choices"][0])
            streamed = "".join(text_of(choice) for event in events for choice in event["choices"])
            self.assertEqual(whole.json["choices"][0]["finish_reason"], "stop")
        self.assertEqual(streamed, text)
        return text

    BODIES = {
        "/v1/completions": {"prompt": "Once", "max_tokens": 450, "seed": 3},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 450, "seed": 3},
        "/v1/responses": {"input": "Once", "max_output_tokens": 450, "seed": 3},
        "/v1/messages": {"model": MODEL, "messages": [{"role": "user", "content": "Once"}], "max_tokens": 450, "temperature": 0},
    }

    def test_every_api_binds_its_answers(self):
        format_of = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": SCHEMA}}
        asks = [
            ("/v1/completions", {"response_format": format_of}),
            ("/v1/completions", {"structured_outputs": {"json": SCHEMA}}),
            ("/v1/chat/completions", {"response_format": format_of}),
            ("/v1/chat/completions", {"structured_outputs": {"json": json.dumps(SCHEMA), "whitespace_pattern": ""}}),
            ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "animal", "schema": SCHEMA}}}),
            ("/v1/responses", {"structured_outputs": {"json": SCHEMA}}),
            ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        ]
        for path, fields in asks:
            follows(self.asked(path, {**self.BODIES[path], **fields}))
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
            ask = lambda value: self.asked(path, {**self.BODIES[path], "structured_outputs": value})
            self.assertRegex(ask({"regex": "[a-c]{2,5}x"}), r"\A[a-c]{2,5}x\Z")
            self.assertIn(ask({"choice": ["yes", "no"]}), ("yes", "no"))
            self.assertRegex(ask({"grammar": GRAMMAR}), r"\Athe (cat|dog)s?\.\Z")

    def test_the_same_request_gives_the_same_alone_and_among_others(self):
        body = {**self.BODIES["/v1/completions"], "structured_outputs": {"json": SCHEMA}}
        alone = self.asked("/v1/completions", body)
        self.assertEqual(in_parallel(8, lambda _: self.asked("/v1/completions", body)), [alone] * 8)

    def test_what_is_wrong_is_told_with_its_field(self):
        cases = [
            ("structured_outputs", {"json": {}, "regex": "a"}, "multiple are specified: json, regex."),
            ("structured_outputs", {"json": "{"}, "JSON"),
            ("structured_outputs", {"json": {"type": "object", "properties": {"a": {"allOf": [{"type": "null"}, {"type": "string"}]}}, "required": ["a"]}}, "can't be satisfied"),
            ("structured_outputs", {"regex": "a(b"}, "(at position 1)"),
            ("structured_outputs", {"grammar": "root ::= other"}, '"other" is not defined'),
            ("structured_outputs", {"choice": []}, "must not be empty"),
            ("response_format", {"type": "xml"}, "response_format.type must be one of"),
            ("response_format", {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"not": {}}}}}}, "/properties/a: not"),
        ]
        for path in ("/v1/completions", "/v1/chat/completions"):
            for field, value, sentence in cases:
                for stream in (False, True):
                    answer = self.server.post(path, {**self.BODIES[path], field: value, "stream": stream})
                    self.assertEqual(answer.status, 400, (value, answer.text))
                    self.assertEqual(answer.json["error"]["param"], field, answer.text)
                    self.assertIn(sentence, answer.json["error"]["message"])
        bad = {"type": "json_schema", "name": "n", "schema": {"properties": {"a": {"not": {}}}}}
        for stream in (False, True):
            answer = self.server.post("/v1/responses", {**self.BODIES["/v1/responses"], "text": {"format": bad}, "stream": stream})
            self.assertEqual((answer.status, answer.json["error"]["param"]), (400, "text.format"), answer.text)
            answer = self.server.post("/v1/messages", {**self.BODIES["/v1/messages"], "output_config": {"format": bad}, "stream": stream})
            self.assertEqual((answer.status, answer.json["error"]["type"]), (400, "invalid_request_error"), answer.text)
            self.assertIn("/properties/a: not", answer.json["error"]["message"])
        answer = self.server.post("/v1/completions", {**self.BODIES["/v1/completions"], "guided_json": {"a": 1}})
        self.assertEqual((answer.status, answer.json["error"]["param"]), (400, "guided_json"), answer.text)
        self.assertIn("use structured_outputs", answer.json["error"]["message"])

    def test_what_would_bind_an_answer_elsewhere_is_refused(self):
        schema = {"type": "object"}
        chat = {"response_format": {"type": "json_object"}}
        of_responses = {"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}
        of_messages = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        everywhere = [{"json_schema": schema}, {"grammar": GRAMMAR}, {"regex": "a"}, {"structured_output": {"regex": "a"}}, {"guided_regex": "a"}]
        cases = [
            ("/v1/completions", [*everywhere, of_responses, of_messages], "structured_outputs, or response_format"),
            ("/v1/chat/completions", [*everywhere, of_responses, of_messages], "structured_outputs, or response_format"),
            ("/v1/responses", [*everywhere, chat, of_messages], "text.format, or structured_outputs"),
            ("/v1/messages", [*everywhere, chat, of_responses, {"structured_outputs": {"choice": []}}], "output_config.format"),
        ]
        for path, asked, ours in cases:
            for fields in asked:
                answer = self.server.post(path, {**self.BODIES[path], **fields})
                self.assertEqual(answer.status, 400, (path, fields, answer.text))
                (name,) = fields
                self.assertEqual(answer.json["error"]["message"], f"{name} is not known; use {ours}.")
            nothing = {"grammar": "", "json_schema": None, "guided_json": {}, "text": {"verbosity": "low"}, "output_config": {"effort": "low"}}
            if path in ("/v1/responses", "/v1/messages"):
                nothing["response_format"] = {"type": "text"}
            limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
            self.assertEqual(self.server.post(path, {**self.BODIES[path], **nothing, limit: 16}).status, 200)

    def test_numbers_of_schemas_are_held_exactly_or_refused(self):
        exact = {"enum": [10**23, -(2**63), 2**64 - 1]}
        rounded = {"properties": {"a": {"maximum": ROUNDED}}}
        told = f"the number {ROUNDED} at {{}}properties/a/maximum can't be held exactly; use fewer digits"
        asks = [
            ("/v1/completions", lambda schema: {"structured_outputs": {"json": schema}}, "/structured_outputs/json/"),
            ("/v1/completions", lambda schema: {"structured_outputs": {"json": json.dumps(schema)}}, "/"),
            ("/v1/chat/completions", lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
             "/response_format/json_schema/schema/"),
            ("/v1/responses", lambda schema: {"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}, "/text/format/schema/"),
            ("/v1/messages", lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}}, "/output_config/format/schema/"),
        ]
        for path, field, place in asks:
            self.assertIn(int(float(value)) if "e" in (value := self.asked(path, {**self.BODIES[path], **field(exact)})) else int(value),
                          [int(1e23), *exact["enum"]])
            answer = self.server.post(path, {**self.BODIES[path], **field(rounded)})
            self.assertEqual(answer.status, 400, answer.text)
            self.assertIn(told.format(place), answer.json["error"]["message"])
        # What binds no answer is read as ever.
        body = {**self.BODIES["/v1/completions"], "max_tokens": 1, "temperature": 0}
        self.assertEqual(self.server.request("POST", "/v1/completions", json.dumps(body)[:-1] + ', "top_p": 0.100000000000000000001}').status, 200)

    def test_what_is_not_enforced_is_logged_once(self):
        body = {**self.BODIES["/v1/completions"], "structured_outputs": {"json": {"type": "string", "maxLength": 2, "format": "colour"}}}
        for _ in range(3):
            self.assertRegex(self.asked("/v1/completions", body), r'\A"[^"]{0,2}"\Z')
        self.assertEqual(self.server.log().count('JSON schema: the format "colour" is not enforced\n'), 1, self.server.log())

    def ask_beside_others(self, body):
        """Its answer, and the longest that small requests had to wait meanwhile, in seconds."""
        answers = []
        asking = threading.Thread(target=lambda: answers.append(self.server.request("POST", "/v1/completions", body)))
        asking.start()
        longest = 0
        while asking.is_alive():
            begin = time.monotonic()
            self.assertEqual(self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status, 200)
            longest = max(longest, time.monotonic() - begin)
        asking.join()
        return answers[0], longest

    def test_schemas_of_any_size_are_answered_and_hold_nobody_up(self):
        """Others, meanwhile, wait no longer than the machine makes them."""
        huge = {"enum": ["x" * 1000] * 20000}  # 20 MB
        for constraint in ({"json": huge}, {"json": json.dumps(huge)}, {"regex": "(ab|c)*" * 1_000_000}, {"choice": ["ab" * 10] * 400_000},
                           {"grammar": "root ::= " + '"ab" ' * 2_000_000}, {"choice": [f"{i:06}" for i in range(100_000)]}):
            body = json.dumps({**self.BODIES["/v1/completions"], "structured_outputs": constraint})
            answer, longest = self.ask_beside_others(body)
            fits = len(body) < 2_000_000
            self.assertEqual(answer.status, 200 if fits else 400, answer.text[:300])
            if not fits:
                self.assertIn("1048576", answer.text)
            self.assertLess(len(answer.text), 5000)
            if not SANITIZED:
                self.assertLess(longest, 2, str(constraint)[:50])

    def test_what_is_short_and_takes_for_ever_holds_nobody_up(self):
        """A schema whose large part is named again and again, and a grammar whose states have much to look through for a mask."""
        schema = {"$defs": {"large": {f"annotation{i}": 1 for i in range(40_000)}},
                  "anyOf": [{"$ref": "#/$defs/large", "title": str(i)} for i in range(3000)]}
        begins = [a + b for a in string.ascii_lowercase for b in string.ascii_lowercase]
        grammar = "root ::= " + " | ".join(f'"{begin}" (r0 | "{begin}")' for begin in begins)
        grammar += "".join(f"\nr{i} ::= r{i + 1}" for i in range(30_000)) + '\nr30000 ::= "."\n'
        for constraint, status, sentence in (({"json": schema}, 400, "takes too many steps to compile"), ({"grammar": grammar}, 200, "more time than a token may take")):
            body = json.dumps({**self.BODIES["/v1/completions"], "structured_outputs": constraint})
            answer, longest = self.ask_beside_others(body)
            self.assertEqual(answer.status, status, answer.text[:300])
            self.assertIn(sentence, answer.text)
            if not SANITIZED:
                self.assertLess(longest, 2, sentence)


if __name__ == "__main__":
    unittest.main()
