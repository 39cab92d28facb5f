"""/v1/responses on the real server: what a client sees of a session, whole and streamed, and of its errors."""
import json
import re
import time
import unittest

from serve_testing import MODEL, Server, ServeTest, run_tests

PATH = "/v1/responses"
ASK = {"input": "Tell me a story about a cat.", "max_output_tokens": 24, "temperature": 0, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": ASK["input"]}], "temperature": 0, "ignore_eos": True}
BLOCK = 16  # tokens, of the cache
SIZES = ["--max-model-len", "2048", "--max-num-seqs", "16", "--kv-cache-memory", "64M", "--kvcache-block-size", str(BLOCK)]
TOOL = {"type": "function", "name": "read", "description": "Reads a file.", "strict": False, "parameters": {"type": "object", "properties": {}}}


def stream_of(server, body):
    """The events of a streamed response: each has its type twice and is numbered, and [DONE] is the last."""
    connection = server.connect()
    connection.request("POST", PATH, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", "Accept": "application/json"})
    answer = connection.getresponse()
    data = answer.read().decode()
    connection.close()
    assert answer.status == 200, data
    assert answer.getheader("content-type") == "text/event-stream; charset=utf-8", answer.getheader("content-type")
    blocks = [block for block in data.split("\n\n") if block and not block.startswith(":")]
    assert blocks.pop() == "data: [DONE]", data
    events = []
    for block in blocks:
        name, value = block.split("\n")
        event = json.loads(value.removeprefix("data: "))
        assert name == "event: " + event["type"] and event["sequence_number"] == len(events), block
        events.append(event)
    return events


def words_of(response):
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def without(item, *names):
    """Without what differs from request to request."""
    return {name: value for name, value in item.items() if name not in names}


class Responses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--tool-call-parser", "hermes", *SIZES, small=False)
        cls.addClassCleanup(cls.server.close)

    def answer(self, body, status=200):
        answer = self.server.post(PATH, body)
        self.assertEqual(answer.status, status, answer.text)
        return answer.json

    def test_a_response_says_what_a_chat_says(self):
        response = self.answer({**ASK, "store": True, "metadata": {"a": "b"}})
        chat = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 24}).json
        self.assertEqual(words_of(response), chat["choices"][0]["message"]["content"])
        self.assertEqual(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"])
        self.assertEqual(response["usage"]["output_tokens"], 24)
        self.assertEqual(response["usage"]["total_tokens"], chat["usage"]["total_tokens"])
        self.assertEqual((response["status"], response["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))
        self.assertEqual((response["object"], response["store"], response["metadata"], response["model"]), ("response", False, {"a": "b"}, MODEL))
        self.assertEqual(without(response["output"][0], "id", "content"), {"type": "message", "status": "incomplete", "role": "assistant"})
        self.assertRegex(response["id"], "^resp_")
        self.assertRegex(response["output"][0]["id"], "^msg_")

    def test_a_stream_adds_up_to_the_whole_answer(self):
        body = {**ASK, "max_output_tokens": 200}
        whole = self.answer(body)
        events = stream_of(self.server, body)
        types = [event["type"] for event in events]
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        self.assertEqual(types[:4], ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"])
        self.assertEqual(types[4:-4], ["response.output_text.delta"] * len(deltas))
        self.assertEqual(types[-4:], ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"])
        self.assertGreater(len(deltas), 1)
        self.assertEqual("".join(event["delta"] for event in deltas), words_of(whole))
        last = events[-1]["response"]
        self.assertEqual(last["usage"]["output_tokens"], 200)
        self.assertEqual(last["output"], [events[-2]["item"]])
        changing = ("id", "created_at", "output", "usage")
        self.assertEqual(without(last, *changing), without(whole, *changing))

    def test_every_instruction_reaches_the_prompt(self):
        response = self.answer({"instructions": "You are a cat.", "max_output_tokens": 1, "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are small."}]},
            {"type": "message", "role": "system", "content": "You are grey."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Who are you?"}]}]})
        chat = {"messages": [{"role": "system", "content": "You are a cat.\n\nYou are small.\n\nYou are grey."}, {"role": "user", "content": "Who are you?"}]}
        self.assertEqual(response["usage"]["input_tokens"], self.server.post("/tokenize", chat).json["count"])

    def test_a_probe_with_an_empty_input_is_answered(self):
        response = self.answer({"model": MODEL, "input": "", "max_output_tokens": 1})
        self.assertEqual(response["usage"]["output_tokens"], 1)

    def test_the_second_request_of_a_session_finds_what_it_shares_in_the_cache(self):
        story = "The small grey cat sat by the old wall and looked at the red bird. " * 8
        session = {"instructions": story, "max_output_tokens": 40, "temperature": 0, "include": ["reasoning.encrypted_content"], "store": False,
                   "prompt_cache_key": "k", "tools": [TOOL, {"type": "web_search"}]}
        items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What did the cat do?"}]}]
        messages = [{"role": "system", "content": story}, {"role": "user", "content": "What did the cat do?"}]
        for turn in range(3):
            response = stream_of(self.server, {**session, "input": items})[-1]["response"]
            shared = self.server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 40, "temperature": 0, "return_token_ids": True}).json
            if turn > 0:
                cached = response["usage"]["input_tokens_details"]["cached_tokens"]
                self.assertGreaterEqual(cached, known - BLOCK, f"turn {turn}")
                self.assertLess(cached, response["usage"]["input_tokens"])
            self.assertEqual(response["usage"]["input_tokens"], len(shared["prompt_token_ids"]))
            items = [*items, *response["output"], {"role": "user", "content": "And then?"}]
            messages = [*messages, {"role": "assistant", "content": words_of(response)}, {"role": "user", "content": "And then?"}]
            said = shared["prompt_token_ids"] + shared["choices"][0]["token_ids"]
            later = self.server.post("/tokenize", {"messages": messages}).json["tokens"]
            # As far as the words that were said are tokenized as they were said; the last token was never computed.
            known = next((i for i, pair in enumerate(zip(said[:-1], later)) if pair[0] != pair[1]), len(said) - 1)
            self.assertGreater(known, len(shared["prompt_token_ids"]))

    def test_log_probabilities_are_those_of_a_chat(self):
        body = {**ASK, "max_output_tokens": 5, "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
        chat = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 5, "logprobs": True, "top_logprobs": 2}).json
        expected = chat["choices"][0]["logprobs"]["content"]
        self.assertEqual(self.answer(body)["output"][0]["content"][0]["logprobs"], expected)
        events = stream_of(self.server, body)
        self.assertEqual([entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]], expected)
        self.assertEqual(events[-1]["response"]["output"][0]["content"][0]["logprobs"], expected)

    def test_errors_are_told_before_a_stream_begins(self):
        long_text = "The cat sat. " * 1000
        for body, status, param, code, words in (
                ({"input": "x", "model": "other"}, 404, "model", 404, "The model `other` does not exist"),
                ({}, 400, "input", 400, "input must be given."),
                ({"input": 7}, 400, "input", 400, "input must be a text or a list of items, got 7."),
                ({"input": "x", "max_output_tokens": 0}, 400, "max_output_tokens", 400, "max_output_tokens must be at least 1, got 0."),
                ({"input": "x", "temperature": -1}, 400, "temperature", 400, "temperature"),
                ({"input": "x", "previous_response_id": "resp_1"}, 404, "previous_response_id", "previous_response_not_found", "'resp_1' not found"),
                ({"input": "x", "background": True}, 400, "background", 400, "background is not supported"),
                ({"input": "x", "conversation": "c"}, 400, "conversation", 400, "conversation is not supported"),
                ({"input": "x", "prompt": {"id": "p"}}, 400, "prompt", 400, "prompt is not supported"),
                ({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}}, 400, "text.format", 400, "not can't be enforced"),
                ({"input": "x", "tool_choice": "required"}, 400, "tool_choice", 400, "must be specified with 'tools'"),
                ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "function", "name": "?"}}, 400, "tool_choice", 400, "none of the tools"),
                ({"input": "x", "tools": [{"type": "function"}]}, 400, "tools[0]", 400, "tools[0].name must be given."),
                ({"input": [{"type": "function_call_output", "call_id": "c", "output": "o"}]}, 400, "input[0]", 400, "not among the items before it."),
                ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]}, 400, "input[0].content", 400, "input_image"),
                ({"input": [{"type": "item_reference", "id": "msg_1"}]}, 404, "input[0]", 404, "'msg_1' not found"),
                ({"input": long_text}, 400, None, "context_length_exceeded", "context has room for")):
            for stream in (False, True):
                answer = self.server.post(PATH, {**body, "stream": stream})
                self.assertEqual(answer.status, status, (body, answer.text[:300]))
                error = answer.json["error"]
                self.assertEqual((error["param"], error["code"]), (param, code), error)
                self.assertIn(words, error["message"])
        numbers = [int(number) for number in re.findall(r"\d+", error["message"])]
        self.assertGreater(numbers[0], numbers[1])
        self.assertEqual(numbers[1], 2048)
        self.assertEqual(self.server.post(PATH, "{").status, 400)
        self.assertEqual(self.server.get(PATH).status, 405)

    def test_nothing_is_stored(self):
        for method, path in (("GET", "resp_1"), ("DELETE", "resp_1"), ("GET", "resp_1/input_items"), ("POST", "resp_1/cancel")):
            answer = self.server.request(method, f"{PATH}/{path}", {} if method == "POST" else None)
            self.assertEqual(answer.status, 404, answer.text)
            self.assertIn("Response with id 'resp_1' not found", answer.json["error"]["message"])
        for path in ("compact", "input_tokens"):
            self.assertEqual(self.server.post(f"{PATH}/{path}", {"input": "x"}).status, 404)

    def test_what_is_left_out_stands_in_the_log(self):
        self.answer({**ASK, "tools": [TOOL, {"type": "web_search"}], "safeguards": 1})
        self.server.wait_for(r"is ignored: safeguards, tools\[1\] \(web_search\)")

    def test_a_client_that_leaves_ends_its_request(self):
        aborted = self.server.metric("vllm:request_success_total", 'finished_reason="abort"')
        connection = self.server.connect()
        connection.request("POST", PATH, json.dumps({"input": "x", "stream": True, "max_output_tokens": 1900, "ignore_eos": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.assertEqual(response.readline(), b"event: response.created\n")
        connection.close()
        response.close()
        deadline = time.monotonic() + 30
        while self.server.metric("vllm:request_success_total", 'finished_reason="abort"') == aborted:
            self.assertLess(time.monotonic(), deadline, "the request goes on without its client")
            time.sleep(0.05)
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 0)

    def test_it_is_described(self):
        document = self.server.get("/openapi.json").json
        operation = document["paths"][PATH]["post"]
        schema = document["components"]["schemas"]["ResponsesRequest"]
        self.assertEqual(operation["requestBody"]["content"]["application/json"]["schema"], {"$ref": "#/components/schemas/ResponsesRequest"})
        self.assertEqual(schema["required"], ["input"])
        for name in ("input", "tools", "temperature", "top_k", "max_output_tokens"):
            self.assertIn(name, schema["properties"])
        self.assertNotIn("n", schema["properties"])


class Thoughts(ServeTest):
    def test_a_thought_is_an_item_of_its_own(self):
        server = self.serve("--reasoning-parser", "qwen3", *SIZES, small=False)
        response = server.post(PATH, {**ASK, "thinking_token_budget": 5}).json
        self.assertEqual([item["type"] for item in response["output"]], ["reasoning", "message"])
        thought = response["output"][0]
        self.assertEqual((thought["summary"], thought["encrypted_content"], thought["content"][0]["type"]), ([], None, "reasoning_text"))
        events = stream_of(server, {**ASK, "thinking_token_budget": 5})
        self.assertEqual([without(item, "id") for item in events[-1]["response"]["output"]], [without(item, "id") for item in response["output"]])
        said = "".join(event["delta"] for event in events if event["type"] == "response.reasoning_text.delta")
        self.assertEqual(said, thought["content"][0]["text"])

    def test_a_stream_that_is_cut_off_says_so(self):
        server = self.serve("--shutdown-timeout", "0.01", "--num-threads", "1", "--dtype", "float32", *SIZES, small=False)
        body = {"input": "x", "stream": True, "max_output_tokens": 1900, "ignore_eos": True}
        connection = server.connect()
        connection.request("POST", PATH, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.assertEqual(response.readline(), b"event: response.created\n")
        server.process.terminate()
        rest = response.read().decode()
        self.assertIn("event: response.failed\n", rest)
        failed = json.loads(rest.split("event: response.failed\ndata: ")[1].split("\n")[0])["response"]
        self.assertEqual((failed["status"], failed["error"]["code"]), ("failed", "server_error"))
        self.assertTrue(rest.endswith("data: [DONE]\n\n"))
        connection.close()


if __name__ == "__main__":
    run_tests()
