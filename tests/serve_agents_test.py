"""The APIs that agents speak, on the real server: raw HTTP, as the agents' packages send it."""
import json
import tempfile

from dictated_testing import DictatedTest, call
from serve_testing import ServeTest, Server, event_stream, in_parallel, run_tests

BLOCK = 16  # tokens of the KV cache
# Tells its tools and calls as Qwen's do, so that calls are looked for.
TEMPLATE = """{%- if tools %}<|im_start|>system
{% for t in tools %}{{ t.function.name }}: {{ t | tojson }}
{% endfor %}Call them in <tool_call> {"name": ..., "arguments": ...} </tool_call>.<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TOOLS = [{"name": "Read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {"file_path": {"type": "string"}}}}]


def asked(server, **fields):
    return {"model": server.name, "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": "Who is the cat?"}], **fields}


def message_of(events):
    """What a client of Anthropic's API makes of a stream."""
    message, texts = None, {}
    for name, data in events:
        assert name == data["type"], (name, data)
        if name == "message_start":
            message = data["message"]
        elif name == "content_block_start":
            assert data["index"] == len(message["content"])
            message["content"].append(data["content_block"])
        elif name == "content_block_delta":
            for key, value in data["delta"].items():
                if key == "partial_json":
                    texts[data["index"]] = texts.get(data["index"], "") + value
                elif key != "type":
                    message["content"][data["index"]][key] += value
        elif name == "message_delta":
            message.update(data["delta"])
            message["usage"].update(data["usage"])
    assert name == "message_stop", name
    for index, text in texts.items():
        message["content"][index]["input"] = json.loads(text)
    return message


def num_prompt_tokens(usage):
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


class AgentsTest(ServeTest):
    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write(TEMPLATE)
            template.flush()
            cls.server = Server("--chat-template", template.name, "--served-model-name", "cat", "--api-key", "secret",
                                "--kvcache-block-size", BLOCK)
        cls.server.name = "cat"
        cls.addClassCleanup(cls.server.close)

    def post(self, path, body, key="secret", **headers):
        return self.server.post(path, body, headers={"x-api-key": key, "anthropic-version": "2023-06-01", **headers})


class Messages(AgentsTest):
    def test_a_stream_adds_up_to_the_whole_answer(self):
        for more in ({}, {"tools": TOOLS}, {"stop_sequences": [" the"]}, {"max_tokens": 1}):
            body = asked(self.server, **more)
            whole = self.post("/v1/messages?beta=true", body)
            self.assertEqual(whole.status, 200, whole.text)
            streamed = message_of(event_stream(self.server, "/v1/messages", body, {"Authorization": "Bearer secret"}))
            for message in (whole.json, streamed):
                self.assertTrue(message.pop("id").startswith("msg_"))
                message["num_prompt_tokens"] = num_prompt_tokens(message["usage"])
                message["num_tokens"] = message.pop("usage")["output_tokens"]
            self.assertEqual(streamed, whole.json)
            self.assertEqual(whole.json["content"][0]["type"], "text")
            self.assertEqual((whole.json["type"], whole.json["role"], whole.json["model"]), ("message", "assistant", "cat"))

    def test_says_why_it_stopped(self):
        story = self.post("/v1/messages", asked(self.server)).json
        text = story["content"][0]["text"]
        self.assertEqual((story["stop_reason"], story["stop_sequence"], story["usage"]["output_tokens"]), ("max_tokens", None, 12))
        stop = text[len(text) // 2:][:3]
        stopped = self.post("/v1/messages", asked(self.server, stop_sequences=[stop])).json
        self.assertEqual((stopped["stop_reason"], stopped["stop_sequence"]), ("stop_sequence", stop))
        self.assertEqual(stopped["content"][0]["text"], text[:text.index(stop)])

    def test_more_tokens_than_are_left_are_cut(self):
        """As Claude Code asks for 32,000 whatever the context is."""
        def fields(num_words):
            return asked(self.server, max_tokens=32000, messages=[{"role": "user", "content": "A cat" + " sat" * num_words}])

        def count(num_words):
            return self.post("/v1/messages/count_tokens", fields(num_words)).json["input_tokens"]

        num_words = (508 - count(0)) // (count(1) - count(0))
        self.assertIn(count(num_words), range(505, 509))
        answer = self.post("/v1/messages", fields(num_words))
        self.assertEqual(answer.status, 200, answer.text)
        usage = answer.json["usage"]
        self.assertEqual((answer.json["stop_reason"], num_prompt_tokens(usage) + usage["output_tokens"]), ("max_tokens", 512))

    def test_a_prompt_that_is_too_long_is_told_with_both_numbers(self):
        for more in ({}, {"stream": True}):
            body = asked(self.server, messages=[{"role": "user", "content": "A cat sat. " * 300}], **more)
            count = self.post("/v1/messages/count_tokens", body)
            self.assertEqual(count.status, 200, count.text)
            self.assertGreater(count.json["input_tokens"], 512)
            answer = self.post("/v1/messages", body)
            self.assertEqual(answer.status, 400)
            self.assertEqual(answer.json, {"type": "error", "error": {
                "type": "invalid_request_error", "message": f"prompt is too long: {count.json['input_tokens']} tokens > 512 maximum"}})

    def test_counts_what_the_message_reports(self):
        session = [{"role": "user", "content": [{"type": "text", "text": "Read a.txt."}]},
                   {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "x"},
                                                     {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a.txt"}}]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "A cat."}]}]}]
        for fields in ({}, {"system": "Be brief.", "tools": TOOLS}, {"messages": session, "tools": TOOLS}):
            body = asked(self.server, **fields)
            message = self.post("/v1/messages", body).json
            for name in ("max_tokens", "temperature"):
                del body[name]
            count = self.post("/v1/messages/count_tokens?beta=true", body)
            self.assertEqual(count.json, {"input_tokens": num_prompt_tokens(message["usage"])}, count.text)

    def test_the_next_request_of_a_session_finds_the_last_one_in_the_cache(self):
        sessions = in_parallel(4, self.hold_a_session)
        for first, second in sessions:
            self.assertEqual(second["cache_creation_input_tokens"], 0)
            # All that both share but what is no whole block.
            self.assertGreaterEqual(second["cache_read_input_tokens"], num_prompt_tokens(first) - BLOCK - 4, (first, second))

    def hold_a_session(self, i):
        def header(conversation):
            return {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.332.{conversation}; cc_entrypoint=sdk-cli;"}

        rules = {"type": "text", "text": f"You are agent number {i}. " + "Be brief and kind. " * 10}
        question = {"type": "text", "text": "Who is the cat?", "cache_control": {"type": "ephemeral"}}
        body = asked(self.server, tools=TOOLS, system=[header("4ab"), rules], messages=[{"role": "user", "content": [question]}])
        first = self.post("/v1/messages", body).json
        body["system"][0] = header("5cd")
        body["messages"] = [{"role": "user", "content": question["text"]}, {"role": "assistant", "content": first["content"]},
                            {"role": "user", "content": [{"type": "text", "text": "And the dog?", "cache_control": {"type": "ephemeral"}}]}]
        return first["usage"], self.post("/v1/messages", body).json["usage"]

    def test_keys_come_in_two_headers(self):
        body = asked(self.server, max_tokens=1)
        self.assertEqual(self.server.post("/v1/messages", body, headers={"Authorization": "Bearer secret"}).status, 200)
        self.assertEqual(self.server.get("/v1/models", headers={"x-api-key": "secret"}).status, 200)
        for headers in ({}, {"x-api-key": "other"}, {"Authorization": "Bearer other"}):
            answer = self.server.post("/v1/messages", body, headers=headers)
            self.assertEqual(answer.status, 401)
            self.assertEqual((answer.json["type"], answer.json["error"]["type"]), ("error", "authentication_error"))

    def test_errors_have_the_form_of_the_api(self):
        body = asked(self.server)
        for answer, status, kind, words in (
                (self.post("/v1/messages", {**body, "model": "opus"}), 404, "not_found_error", "The model `opus` does not exist"),
                (self.post("/v1/messages/count_tokens", {**body, "model": "opus"}), 404, "not_found_error", "The model `opus` does not exist"),
                (self.post("/v1/messages", "{"), 400, "invalid_request_error", "The body"),
                (self.post("/v1/messages", {**body, "max_tokens": None}), 400, "invalid_request_error", "max_tokens must be given."),
                (self.post("/v1/messages", {**body, "stream": True, "tool_choice": {"type": "any"}}), 400, "invalid_request_error", "needs tools"),
                (self.post("/v1/messages", {**body, "temperature": 7}), 400, "invalid_request_error", "temperature"),
                (self.post("/v1/messages", b" " * (33 << 20)), 413, "request_too_large", "33554432 bytes"),
                (self.post("/v1/messages", body, **{"Content-Type": "text/plain"}), 400, "invalid_request_error", "application/json"),
                (self.server.get("/v1/messages", headers={"x-api-key": "secret"}), 405, "invalid_request_error", "/v1/messages takes POST")):
            self.assertEqual(answer.status, status, answer.text)
            self.assertEqual(set(answer.json), {"type", "error"})
            self.assertEqual((answer.json["type"], answer.json["error"]["type"]), ("error", kind))
            self.assertIn(words, answer.json["error"]["message"])
            self.assertEqual(answer.getheader("request-id"), answer.getheader("x-request-id"))
        thread = self.post("/v1/messages", {**body, "thread": {"type": "create"}})
        self.assertEqual((thread.status, thread.json["error"]["details"]), (400, {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}))

    def test_answers_what_clients_probe(self):
        key = {"x-api-key": "secret"}
        for path in ("/", "/api/hello"):
            connection = self.server.connect()
            connection.request("HEAD", path)
            self.assertLess(connection.getresponse().status, 500)
            connection.close()
        listed = self.server.get("/v1/models?limit=1000", headers=key).json["data"]
        one = self.server.get("/v1/models/cat", headers=key)
        self.assertEqual((one.status, one.json), (200, listed[0]))
        self.assertEqual(self.server.get("/v1/models/dog", headers=key).status, 404)
        answer = self.post("/v1/messages", asked(self.server, max_tokens=1), **{"x-request-id": "mine"})
        self.assertEqual((answer.getheader("request-id"), answer.json["id"]), ("mine", "msg_mine"))
        paths = self.server.get("/openapi.json", headers=key).json["paths"]
        self.assertEqual(paths["/v1/messages"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"], "#/components/schemas/MessagesRequest")
        self.assertIn("/v1/messages/count_tokens", paths)

    def test_is_counted_by_the_metrics(self):
        def successes():
            page = self.server.get("/metrics", headers={"x-api-key": "secret"}).text
            return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("vllm:request_success_total"))

        before = successes()
        self.post("/v1/messages", asked(self.server, max_tokens=1))
        self.post("/v1/messages/count_tokens", asked(self.server))
        self.assertEqual(successes(), before + 1)


class DictatedMessages(DictatedTest):
    def test_a_thought_a_text_and_calls_are_blocks_streamed_or_whole(self):
        server = self.serve()
        server.say("<think>\nA file is asked for.\n</think>\n\nI read it." + call("Read", file_path="a.txt") + call("Read", file_path="b.txt"))
        body = {"model": "dictated", "max_tokens": 1000, "tools": TOOLS, "messages": [{"role": "user", "content": "Read them."}]}
        whole = server.post("/v1/messages", body)
        self.assertEqual(whole.status, 200, whole.text)
        for message in (whole.json, message_of(event_stream(server, "/v1/messages", body))):
            thought, text, *calls = message["content"]
            self.assertEqual((thought["type"], thought["thinking"].strip(), thought["signature"]), ("thinking", "A file is asked for.", "nanovllm"))
            self.assertEqual((text["type"], text["text"].strip()), ("text", "I read it."))
            self.assertEqual([(one["type"], one["name"], one["input"]) for one in calls],
                             [("tool_use", "Read", {"file_path": path}) for path in ("a.txt", "b.txt")])
            self.assertTrue(all(one["id"].startswith("toolu_") for one in calls) and calls[0]["id"] != calls[1]["id"], calls)
            self.assertEqual((message["stop_reason"], message["stop_sequence"]), ("tool_use", None))
        one = server.post("/v1/messages", {**body, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}).json
        self.assertEqual([block["type"] for block in one["content"]], ["thinking", "text", "tool_use"])

    def test_a_response_counts_the_tokens_of_its_thought(self):
        server = self.serve()
        thought = "\nA file is asked for.\n"
        server.say(f"<think>{thought}</think>\n\nI read it.")
        usage = server.post("/v1/responses", {"model": "dictated", "input": "Read it."}).json["usage"]
        count = server.post("/tokenize", {"prompt": thought, "add_special_tokens": False}).json["count"]
        self.assertIn(usage["output_tokens_details"]["reasoning_tokens"], (count, count + 1, count + 2))  # with its tags, or without
        self.assertGreater(usage["output_tokens"], count + 2)

    def test_single_messages_are_counted_whatever_the_template_refuses(self):
        """As Claude Code's /context asks for them: Qwen3.5's template refuses a dialogue without a user."""
        server = self.serve(template="Qwen3.5-4B")
        system = "Be brief and kind."
        for message in ({"role": "assistant", "content": "It is a cat."}, {"role": "system", "content": system},
                        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a.txt"}}]},
                        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "A cat."}]}):
            answer = server.post("/v1/messages/count_tokens", {"model": "dictated", "messages": [message]})
            self.assertEqual(answer.status, 200, answer.text)
            self.assertIn(answer.json["input_tokens"], range(3, 200))


class MessagesOfABusyServer(ServeTest):
    def test_too_many_are_asked_to_try_again(self):
        server = self.serve("--max-queue-len", "1", "--max-num-seqs", "1", "--served-model-name", "cat")
        server.name = "cat"

        def ask(_):
            return server.post("/v1/messages", asked(server, max_tokens=200))

        answers = in_parallel(12, ask)
        refused = [answer for answer in answers if answer.status != 200]
        self.assertTrue(refused)
        for answer in refused:
            self.assertEqual((answer.status, answer.json["error"]["type"]), (429, "rate_limit_error"), answer.text)
            self.assertTrue(answer.getheader("Retry-After"))


if __name__ == "__main__":
    run_tests()
