"""The server as its users meet it: what it answers, how it ends, and streams that survive the death of their engine."""
import configparser
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from serve_testing import BINARY, LONG, MODEL, SANITIZED, SLOW_CPU, SMALL, ServeTest, Server, in_parallel, text_of

GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
STORY = {"prompt": "Once upon a time", **GREEDY}
CHAT = {"messages": [{"role": "user", "content": "Tell me a story about a dog."}], **GREEDY}


def thinking_server(*args):
    """One whose template opens a thought, unless it is told not to."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}<|im_start|>assistant\n"
                       "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% elif enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}")
        template.flush()
        return Server("--chat-template", template.name, "--reasoning-parser", "deepseek_r1", *args)


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)

    def test_a_completion_is_what_generate_gives(self):
        answer = self.server.post("/v1/completions", STORY)
        self.assertEqual(answer.status, 200, answer.text)
        generated = subprocess.run([BINARY, "generate", MODEL, "--input", "-", "-q"], input=json.dumps({"prompt": STORY["prompt"], "sampling_params": GREEDY}),
                                   capture_output=True, text=True, check=True)
        result = json.loads(generated.stdout)
        choice = answer.json["choices"][0]
        self.assertEqual(choice["text"], result["text"])
        self.assertEqual(choice["finish_reason"], "length")
        self.assertEqual(answer.json["object"], "text_completion")
        usage = {name: count for name, count in answer.json["usage"].items() if count is not None}
        self.assertEqual(usage, {"prompt_tokens": result["num_prompt_tokens"], "total_tokens": result["num_prompt_tokens"] + 24, "completion_tokens": 24})

    def test_streams_add_up_to_the_whole_answer(self):
        for path, body in (("/v1/completions", STORY), ("/v1/chat/completions", CHAT)):
            whole = self.server.post(path, body).json["choices"][0]
            events = list(self.server.stream(path, {**body, "stream_options": {"include_usage": True}}))
            self.assertEqual(events[-1], "[DONE]")
            self.assertEqual(events[-2]["choices"], [])
            self.assertEqual(events[-2]["usage"]["completion_tokens"], 24)
            self.assertEqual(events[-3]["choices"][0]["finish_reason"], "length")
            self.assertEqual(text_of(events), whole.get("text") or whole["message"]["content"])
        self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")

    def test_several_prompts_and_completions_have_indices(self):
        body = {**STORY, "prompt": ["Once", "There was"], "n": 2, "temperature": 0.8, "seed": 7, "max_tokens": 8}
        whole = self.server.post("/v1/completions", body).json
        self.assertEqual([choice["index"] for choice in whole["choices"]], [0, 1, 2, 3])
        texts = ["", "", "", ""]
        for event in self.server.stream("/v1/completions", body):
            for choice in [] if event == "[DONE]" else event["choices"]:
                texts[choice["index"]] += choice["text"]
        self.assertEqual(texts, [choice["text"] for choice in whole["choices"]])

    def test_flags_say_what_templates_and_usage_are(self):
        server = Server("--default-chat-template-kwargs", '{"word": "dog"}', "--trust-request-chat-template", "--enable-force-include-usage",
                        "--enable-tokenizer-info-endpoint")
        self.addCleanup(server.close)
        tokens = server.post("/tokenize", {"messages": CHAT["messages"], "chat_template": "a {{ word }}"}).json["tokens"]
        self.assertEqual(server.post("/detokenize", {"tokens": tokens}).json["prompt"].strip(), "a dog")
        events = list(server.stream("/v1/completions", STORY))
        self.assertEqual(events[-2]["usage"]["completion_tokens"], 24)
        self.assertTrue(all("usage" in event for event in events[:-1]))
        self.assertEqual(self.server.post("/tokenize", {"messages": CHAT["messages"], "chat_template": "a"}).status, 400)
        told = server.get("/tokenizer_info").json
        self.assertEqual(told, json.loads((pathlib.Path(MODEL) / "tokenizer_config.json").read_text()))
        self.assertEqual((told["tokenizer_class"], told["eos_token"]), ("PreTrainedTokenizerFast", "<|im_end|>"))
        self.assertEqual(server.request("DELETE", "/tokenizer_info").status, 405)
        untold = self.server.get("/tokenizer_info")
        self.assertEqual(untold.status, 404)
        self.assertIn("--enable-tokenizer-info-endpoint", untold.text)

    def test_only_requests_of_the_same_salt_share_what_is_cached(self):
        server = Server("--enable-prompt-tokens-details", "--kvcache-block-size", "16", "--data-parallel-size", "2")
        self.addCleanup(server.close)
        paths = {"/v1/completions": {**STORY, "prompt": list(range(1, 41)), "max_tokens": 1},
                 "/v1/chat/completions": {**CHAT, "messages": [{"role": "user", "content": "Tell me a story about a dog. " * 4}], "max_tokens": 1}}
        for path, body in paths.items():
            cached = [server.post(path, {**body, **({"cache_salt": salt} if salt else {})}).json["usage"]["prompt_tokens_details"]["cached_tokens"]
                      for salt in ("a", None, "b", "a", "b", None)]
            self.assertEqual(cached[:3], [0, 0, 0], path)
            self.assertEqual(cached[3:], cached[3:4] * 3, path)
            self.assertGreaterEqual(cached[3], 16, path)
            answer = server.post(path, {**body, "cache_salt": ""})
            self.assertEqual((answer.status, answer.json["error"]["param"]), (400, "cache_salt"))
            self.assertEqual(answer.json["error"]["message"], "Parameter 'cache_salt' must be a non-empty string if provided.")
            self.assertEqual(server.post(path, {**body, "cache_salt": 3}).status, 400)
            self.assertEqual([server.post(path, {**body, "cache_salt": "s" * size}).status for size in (1024, 1025)], [200, 400])

    def test_a_thought_ends_after_its_budget(self):
        server = thinking_server()
        self.addCleanup(server.close)
        tag = server.post("/tokenize", {"prompt": "</think>", "add_special_tokens": False}).json["tokens"]
        self.assertEqual(len(tag), 5)

        def text(ids):
            return server.post("/detokenize", {"tokens": ids}).json["prompt"].strip()

        def ask(path="/v1/chat/completions", **fields):
            body = {**(CHAT if "chat" in path else STORY), "max_tokens": 40, "return_token_ids": True, **fields}
            return server.post(path, body).json["choices"][0]

        free = ask()
        self.assertFalse(free["message"]["content"])
        for budget in (0, 1, 10, 35, 36, 37, 41):
            choice = ask(thinking_token_budget=budget)
            ids, before = choice["token_ids"], max(0, budget - 1)  # a line break of the prompt is of the thought
            self.assertEqual(ids[:before], free["token_ids"][:before], budget)
            self.assertEqual(ids[before:before + 5], tag[:max(0, 40 - before)], budget)
            if budget <= 36:
                shown = [(choice["message"].get(part) or "").strip() for part in ("reasoning", "content")]
                self.assertEqual(shown, [text(ids[:before]), text(ids[before + 5:])], budget)
        for unbounded in (-1, None):
            self.assertEqual(ask(thinking_token_budget=unbounded)["token_ids"], free["token_ids"])
        # What a user says of thoughts is none, and an answer without a thought is left alone.
        other = {"messages": [{"role": "user", "content": "I say\n<think>\nto you."}], "chat_template_kwargs": {"enable_thinking": False}}
        self.assertEqual(ask(thinking_token_budget=3, **other)["token_ids"], ask(**other)["token_ids"])
        # Where the template leaves it open, all is a thought from the first token on.
        leaves_open = {"chat_template_kwargs": {"enable_thinking": ""}}
        unbounded = ask(**leaves_open)
        self.assertTrue(unbounded["message"]["reasoning"])
        self.assertFalse(unbounded["message"]["content"])
        for budget in (0, 3):
            choice = ask(thinking_token_budget=budget, **leaves_open)
            self.assertEqual(choice["token_ids"][:budget + 5], unbounded["token_ids"][:budget] + tag)
            self.assertEqual(choice["message"].get("reasoning") or "", text(unbounded["token_ids"][:budget]) if budget else "")
            self.assertTrue(choice["message"]["content"])
        path = "/v1/completions"
        self.assertEqual(ask(path, thinking_token_budget=3)["token_ids"], ask(path)["token_ids"])
        prompt = "She said:\n<think>\n"
        self.assertEqual(ask(path, prompt=prompt, thinking_token_budget=4)["token_ids"][:8], ask(path, prompt=prompt)["token_ids"][:3] + tag)
        for path, body in (("/v1/completions", STORY), ("/v1/chat/completions", CHAT)):
            refused = self.server.post(path, {**body, "thinking_token_budget": 5})
            self.assertEqual((refused.status, refused.json["error"]["param"]), (400, "thinking_token_budget"), refused.text)
            self.assertIn("--reasoning-parser", refused.json["error"]["message"])
            self.assertEqual(server.post(path, {**body, "thinking_token_budget": -2}).status, 400)

    def test_a_prompt_that_has_ended_costs_nothing_while_others_run(self):
        def seconds_of_front():
            fields = pathlib.Path(f"/proc/{self.server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        body = {"prompt": ["Once upon a time", "Tom and Sue went"], "temperature": 0, "max_tokens": 450, "ignore_eos": True, "stop": [", there"]}
        used, start = seconds_of_front(), time.monotonic()
        for _ in range(5):
            short, long = self.server.post("/v1/completions", body).json["choices"]
            self.assertEqual(short["text"], "")
            self.assertGreater(len(long["text"]), 1000)
        self.assertLess(seconds_of_front() - used, 0.25 * (time.monotonic() - start))

    def test_more_prompts_than_may_ever_wait_are_no_reason_to_try_again(self):
        server = Server("--max-queue-len", "3")
        self.addCleanup(server.close)
        answer = server.post("/v1/completions", {**STORY, "prompt": ["Once"] * 4})
        self.assertEqual((answer.status, answer.getheader("retry-after")), (400, None), answer.text)
        self.assertRegex(answer.json["error"]["message"], r"\b4\b.*\b3\b")
        self.assertEqual(server.post("/v1/completions", {**STORY, "prompt": ["Once"] * 3}).status, 200)
        self.assertEqual(server.metric("vllm:request_success_total", 'finished_reason="abort"'), 0)

    def test_small_endpoints_answer(self):
        models = self.server.get("/v1/models").json
        self.assertEqual(models["data"][0]["id"], MODEL)
        self.assertEqual(models["data"][0]["max_model_len"], 512)
        for path in ("/health", "/ping", "/version", "/metrics", "/openapi.json", "/"):
            self.assertEqual(self.server.get(path).status, 200, path)
        tokens = self.server.post("/tokenize", {"prompt": "Once upon a time"}).json
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        self.assertEqual(self.server.post("/detokenize", {"tokens": tokens["tokens"]}).json["prompt"], "Once upon a time")

    def test_errors_have_their_status_and_name_the_field(self):
        for path, body, status, word in (
                ("/v1/completions", {**STORY, "model": "other"}, 404, "other"),
                ("/v1/completions", {**STORY, "temperature": -1}, 400, "temperature"),
                ("/v1/completions", {**STORY, "prompt_logprobs": 21}, 400, '"param":"prompt_logprobs"'),
                ("/v1/completions", {**STORY, "priority": 1}, 400, "scheduling_policy"),
                ("/v1/completions", {**STORY, "seed": 2 ** 63}, 400, str(2 ** 63 - 1)),
                ("/v1/completions", {**STORY, "seed": -2 ** 63 - 1}, 400, '"param":"seed"'),
                ("/v1/completions", {**STORY, "max_tokens": "many"}, 400, "max_tokens"),
                ("/v1/completions", {**STORY, "suffix": "x"}, 400, "suffix"),
                ("/v1/completions", {**STORY, "logits_processors": ["a.b"]}, 400, "logits_processors"),
                ("/v1/completions", {"prompt": [0] * 600, "max_tokens": 1}, 400, "512"),
                ("/v1/completions", {}, 400, "prompt"),
                ("/v1/completions", "{", 400, ""),
                ("/v1/completions", b'{"prompt": "\xff"}', 400, ""),
                ("/v1/chat/completions", {**CHAT, "response_format": {"type": "json"}}, 400, "response_format"),
                ("/v1/chat/completions", {**CHAT, "tool_choice": "some", "tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tool_choice"),
                ("/v1/chat/completions", {"messages": []}, 400, "messages"),
                ("/v1/embeddings", {"input": "x"}, 404, "embeddings"),
                ("/nowhere", {}, 404, "")):
            answer = self.server.post(path, body)
            self.assertEqual(answer.status, status, (path, body, answer.text))
            self.assertEqual(answer.json["error"]["code"], status)
            self.assertIn(word, answer.text)
        self.assertEqual(self.server.get("/v1/completions").status, 405)
        self.assertEqual(self.server.request("DELETE", "/").status, 405)
        self.assertEqual(self.server.post("/v1/completions", STORY, headers={"Content-Encoding": "gzip"}).status, 415)
        moved = self.server.post("/v1/completions/?a=b", STORY)
        self.assertEqual((moved.status, moved.getheader("location")), (307, "/v1/completions?a=b"))
        self.assertEqual(self.server.post("/v1/completions", "{}", headers={"Content-Type": "text/plain"}).status, 400)

    def test_foreign_pages_and_hosts_are_kept_out(self):
        self.assertEqual(self.server.get("/v1/models", headers={"Origin": "https://evil.example"}).status, 403)
        self.assertEqual(self.server.get("/v1/models", headers={"Host": "evil.example"}).status, 403)
        self.assertEqual(self.server.get("/v1/models", headers={"Origin": f"http://127.0.0.1:{self.server.port}"}).status, 200)

    def test_a_client_that_leaves_is_noticed_behind_what_it_has_sent_ahead(self):
        body = json.dumps({**STORY, "max_tokens": 480, "n": 16, "temperature": 1})
        request = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

        def ended(reason):
            return self.server.metric("vllm:request_success_total", f'finished_reason="{reason}"')
        aborted, whole = ended("abort"), ended("length")
        ahead = request * 20000  # megabytes
        with socket.create_connection(("127.0.0.1", self.server.port)) as connection:
            connection.sendall(request)
            deadline = time.monotonic() + 30
            while self.server.metric("vllm:num_requests_running") == 0:
                self.assertLess(time.monotonic(), deadline, "the request never runs")
            connection.sendall(ahead)
        self.wait_idle(self.server)
        self.assertEqual((ended("abort"), ended("length")), (aborted + 16, whole))

    def test_a_client_that_leaves_frees_its_blocks(self):
        connection = self.server.connect()
        connection.request("POST", "/v1/completions", json.dumps({**STORY, "max_tokens": 500, "stream": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.readline()
        connection.sock.close()
        connection.close()
        response.close()
        self.wait_idle(self.server)

    def wait_idle(self, server):
        deadline = time.monotonic() + 30
        while server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") > 0:
            self.assertLess(time.monotonic(), deadline, "requests go on without their clients")
            time.sleep(0.05)

    def test_metrics_count_what_was_answered(self):
        before = self.server.metric("vllm:generation_tokens_total")
        self.server.post("/v1/completions", STORY)
        deadline = time.monotonic() + 10
        while self.server.metric("vllm:generation_tokens_total") < before + 24 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertGreaterEqual(self.server.metric("vllm:generation_tokens_total"), before + 24)
        self.assertGreaterEqual(self.server.metric("vllm:request_success_total", 'finished_reason="length"'), 1)


class Privacy(ServeTest):
    def test_what_requests_ask_for_is_not_in_the_log(self):
        server = self.serve()
        words = ["private umbrella", "confidential "]  # generate and chat name both, for they can come
        answer = server.post("/v1/completions", {**STORY, "bad_words": words})
        self.assertEqual(answer.status, 200)
        self.assertNotRegex(server.log(), "umbrella|confidential|bad_words")


class Keys(ServeTest):
    def test_with_keys_only_a_few_paths_are_open(self):
        server = self.serve("--api-key", "secret", "--api-key", "other", environment={"NANOVLLM_API_KEY": "third"})
        for path, status in (("/health", 200), ("/ping", 200), ("/version", 200), ("/", 200), ("/v1/models", 401), ("/metrics", 401)):
            self.assertEqual(server.get(path).status, status, path)
        for key, status in (("secret", 200), ("other", 200), ("third", 200), ("secre", 401), ("", 401)):
            self.assertEqual(server.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status, status, key)
        self.assertNotIn("secret", server.log())

    def test_one_option_takes_several_keys_names_and_origins(self):
        origins = ["--allowed-origins", '["https://a", "https://b:8"]', "https://c"]
        server = self.serve("--api_key", "first", "second", "--served-model-name", "one", "two", *origins, "--api-key=third")
        for key, status in (("first", 200), ("second", 200), ("third", 200), ("one", 401)):
            self.assertEqual(server.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status, status, key)
        key = {"Authorization": "Bearer second"}
        self.assertEqual([model["id"] for model in server.get("/v1/models", headers=key).json["data"]], ["one", "two"])
        for name, status in (("one", 200), ("two", 200), ("three", 404)):
            self.assertEqual(server.post("/v1/completions", {**STORY, "model": name}, headers=key).status, status, name)
        for origin, status in (("https://a", 200), ("https://b:8", 200), ("https://c", 200), ("https://d", 403)):
            self.assertEqual(server.get("/v1/models", headers={**key, "Origin": origin}).status, status, origin)
        words = pathlib.Path(f"/proc/{server.workers()[0]}/cmdline").read_text().split("\0")
        self.assertEqual([word for word in words if "key" in word or word in ("first", "second", "third")], [])
        self.assertIn("two", words)

    def test_workers_are_not_told_the_keys(self):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"serve_keys_{os.getpid()}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("api-key: [in-file, 'also in file']\nserved-model-name: told\n")
        self.addCleanup(os.unlink, path)
        server = self.serve("--config", path, "--api-key", "typed-secret", "--api-key=typed-too")
        for key, status in (("in-file", 200), ("also in file", 200), ("typed-secret", 200), ("typed-too", 200), ("told", 401)):
            self.assertEqual(server.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status, status, key)
        words = pathlib.Path(f"/proc/{server.workers()[0]}/cmdline").read_text().split("\0")
        self.assertEqual([word for word in words if "key" in word or "file" in word or "typed" in word], [])
        self.assertIn("--served-model-name=told", words)


class Start(ServeTest):
    def fails(self, *args):
        result = subprocess.run([BINARY, "serve", *args], capture_output=True, text=True, timeout=120)
        return result.returncode, result.stderr.strip().splitlines()[-1]

    def test_what_keeps_it_from_starting_is_one_sentence(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            status, said = self.fails(MODEL, "--port", port)
            self.assertEqual(status, 1)
            self.assertIn(port, said)
        status, said = self.fails("/nonexistent")
        self.assertEqual(status, 1)
        self.assertIn("/nonexistent", said)
        result = subprocess.run([BINARY, "serve", "Owner/Model", "--port", "0"], capture_output=True, text=True, timeout=120, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^nanovllm: Owner/Model: not in the cache .*\n$")
        for key in (["--api-key", ""], ["--api-key=", "--deterministic"], ["--api-key", "secret", "--api-key", ""], ["--api_key", "secret", ""]):
            status, said = self.fails(MODEL, "--port", "0", *key)
            self.assertEqual(status, 2, said)
            self.assertIn("--api-key is empty", said)
        result = subprocess.run([BINARY, "serve", MODEL, "--port", "0"], capture_output=True, text=True, timeout=120, env={**os.environ, "NANOVLLM_API_KEY": ""})
        self.assertEqual((result.returncode, result.stderr),
                         (2, "nanovllm: NANOVLLM_API_KEY is empty, which would let everybody in: leave it out if that is meant\n"))
        for flag in ("--ssl-certfile", "--ssl-keyfile", "--served-model-name", "--uds", "--host", "--chat-template"):
            for words in ([flag, ""], [flag + "="]):
                result = subprocess.run([BINARY, "serve", MODEL, "--port", "0", *words], capture_output=True, text=True, timeout=120)
                self.assertEqual(result.returncode, 2, words)
                self.assertIn(f"nanovllm: {flag}: must not be empty; leave the option out if that is meant\n", result.stderr)
        # Behind its first line all that it says is a log's.
        for flags, meant in ((["--kv-cache-memory", "1K"], "kv_cache_memory is 1024 bytes, but one block of 256 tokens needs"),
                             (["--max-model-len", "2049"], "max_model_len is 2049, but .* was made for 2048 tokens, prompt and output together; ask for no more")):
            status, said = self.fails(MODEL, "--port", "0", *flags)
            self.assertEqual(status, 2)
            self.assertRegex(said, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z nanovllm: " + meant)

    def test_flags_that_mean_nothing_are_refused(self):
        for flag, value in (("--idle-timeout", "nan"), ("--write-timeout", "0"), ("--shutdown-timeout", "-1"), ("--shutdown-timeout", "nan"), ("--worker-timeout", "inf"), ("--max-body-size", "0"),
                            ("--allowed-origins", "https://chat.example/"), ("--allowed-origins", "chat.example"), ("--allowed-origins", "https://"),
                            ("--allowed-origins", '["https://a/"]'), ("--allowed-origins", '[3]'), ("--allowed-origins", "[[]]"),
                            ("--allowed-origins", "[https://a]"), ("--allowed-origins", "https://a,https://b")):
            result = subprocess.run([BINARY, "serve", MODEL, "--port", "0", flag, value], capture_output=True, text=True, timeout=120)
            self.assertEqual(result.returncode, 2, (flag, value, result.stderr))
            self.assertIn(flag, result.stderr)

    def test_there_are_up_to_64_workers(self):
        for size, status in (("0", 2), ("64", 1), ("65", 2)):
            result = subprocess.run([BINARY, "serve", "/nonexistent", "--port", "0", "--data-parallel-size", size], capture_output=True, text=True, timeout=120)
            self.assertEqual(result.returncode, status, result.stderr)
            self.assertIn("--data-parallel-size" if status == 2 else "/nonexistent", result.stderr)

    def test_flags_come_from_a_file(self):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"serve_{os.getpid()}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("enforce-eager: maybe\n")
        self.addCleanup(os.unlink, path)
        result = subprocess.run([BINARY, "serve", MODEL, "--config", path], capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--enforce-eager", result.stderr)
        self.assertIn(path, result.stderr)
        with open(path, "w", encoding="utf-8") as file:
            file.write("served_model_name: [first, second]\nmax-model-len: 256\nenforce-eager: yes\ndeterministic: off\nenable-prefix-caching: no\n"
                       "enable-auto-tool-choice: true\nallowed-origins: '*'\ndefault-chat-template-kwargs: {a: [1, b]}\nidle-timeout: 1.5\nmax-body-size: 1M\n")
        server = self.serve("--config", path, small=False)
        server.wait_for("ready: first on cpu .*, max_model_len 256, ")
        models = server.get("/v1/models").json["data"]
        self.assertEqual([(model["id"], model["max_model_len"]) for model in models], [("first", 256), ("second", 256)])

    def test_behind_a_prefix_the_page_finds_its_files(self):
        server = self.serve("--root-path", "/llm", "--api-key", "secret")
        moved = server.get("/llm")
        self.assertEqual((moved.status, moved.getheader("location")), (308, "/llm/"))
        page = server.get("/llm/").text
        files = re.findall(r'(?:src|href)="([a-z]+\.[a-z]+)"', page)
        self.assertIn("app.js", files)
        for path in ("/llm/", *(f"/llm/{file}" for file in files), "/llm/health", "/health"):
            self.assertEqual(server.get(path).status, 200, path)

    def test_it_is_ready_when_it_is_warm_and_counts_none_of_that(self):
        server = self.serve()
        counters = ["vllm:prompt_tokens_total", "vllm:generation_tokens_total"]
        self.assertEqual([server.metric(name) for name in counters], [0, 0])
        with open(f"/proc/{server.workers()[0]}/stat", encoding="ascii") as stat:
            def pages():  # that its threads touched first
                stat.seek(0)
                return int(stat.read().rsplit(")", 1)[1].split()[7])
            before = pages()
            server.post("/v1/completions", {"prompt": list(range(100)), "max_tokens": 3, "ignore_eos": True})
            # Without a request before this one, 130 to 160. Sanitizers have pages of their own.
            if not SANITIZED:
                self.assertLess(pages() - before, 100)
        deadline = time.monotonic() + 10
        while server.metric(counters[1]) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual([server.metric(name) for name in counters], [100, 3])

    def test_several_workers_are_told_of_and_found_by_their_name(self):
        server = self.serve("--data-parallel-size", "2", "--served-model-name", "demo")
        server.wait_for(r"Z nanovllm: ready: demo, 2 workers, each on cpu \(.*\), max_model_len 512, \d+ tokens of KV cache, ")
        workers = server.workers()
        self.assertEqual(len(workers), 2)
        for worker in workers:
            process = pathlib.Path(f"/proc/{worker}")
            self.assertEqual((process / "comm").read_text(), "nanovllm-worker\n")
            self.assertEqual((process / "cmdline").read_text().split("\0")[0], "nanovllm-worker")
        blocks = [re.search('num_gpu_blocks="([0-9]+)"', line)[1] for line in server.get("/metrics").text.splitlines()
                  if line.startswith("vllm:cache_config_info{")]
        self.assertEqual(blocks, ["64", "64"])
        restarts = "nanovllm_worker_restarts_total"
        self.assertEqual(server.metric(restarts), 0)
        killed = pathlib.Path(f"/proc/{workers[0]}/cmdline").read_text().rstrip("\0").split("\0")[-1]  # its index
        os.kill(workers[0], signal.SIGKILL)
        server.wait_for(f"Worker {killed} is ready again")
        self.assertEqual((server.metric(restarts), server.metric(restarts, f'engine="{killed}"')), (1, 1))

    def test_a_unix_socket_is_served(self):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"serve_{os.getpid()}.sock")
        server = self.serve("--uds", path, wait=False)
        server.wait_for("ready")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            self.assertIn(b" 200 ", connection.recv(4096))
        self.assertEqual(server.stop(), 0)
        self.assertFalse(os.path.exists(path))


class End(ServeTest):
    def test_sigterm_lets_running_requests_end(self):
        server = self.serve()
        stream = server.stream("/v1/completions", {**STORY, "max_tokens": 400})
        first = next(stream)
        server.process.send_signal(signal.SIGTERM)
        rest = list(stream)
        self.assertEqual(rest[-1], "[DONE]")
        self.assertEqual(rest[-2]["choices"][0]["finish_reason"], "length")
        self.assertGreater(len(text_of([first, *rest])), 100)
        self.assertEqual(server.process.wait(60), 0)

    def test_a_terminal_that_goes_lets_running_requests_end(self):
        server = self.serve()
        stream = server.stream("/v1/completions", {**STORY, "max_tokens": 400})
        first = next(stream)
        server.process.send_signal(signal.SIGHUP)
        self.assertGreater(len(text_of([first, *stream])), 100)
        while server.process.poll() is None:  # of the terminal's shell, whenever that is
            server.process.send_signal(signal.SIGHUP)
            time.sleep(0.001)
        self.assertEqual(server.process.wait(60), 0)

    def test_with_nohup_it_outlives_its_terminal(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which the server inherits
        try:
            server = self.serve()
        finally:
            signal.signal(signal.SIGHUP, before)
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        self.assertEqual(server.post("/v1/completions", STORY).status, 200)
        self.assertEqual(server.stop(), 0)

    def test_a_second_signal_ends_it_at_once(self):
        server = self.serve("--shutdown-timeout", "600", "--num-threads", "1", "--dtype", "float32", "--max-model-len", "2048", small=False)
        stream = server.stream("/v1/completions", {**STORY, "max_tokens": 2000})
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)
        self.assertLess(time.monotonic() - started, 10)
        self.assertEqual(server.workers() if server.process.poll() is None else [], [])

    def test_no_time_to_end_is_a_time(self):
        server = self.serve("--shutdown-timeout", "0", "--num-threads", "1", "--dtype", "float32", "--max-model-len", "2048", small=False)
        stream = server.stream("/v1/completions", {**STORY, "max_tokens": 2000})
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        rest = list(stream)
        self.assertIn("error", rest[-2])
        self.assertEqual(rest[-1], "[DONE]")
        self.assertEqual(server.process.wait(10), 0)

    def test_workers_end_with_their_front(self):
        server = self.serve()
        workers = server.workers()
        self.assertEqual(len(workers), 1)
        server.process.kill()
        server.process.wait()
        deadline = time.monotonic() + 30
        while pathlib.Path(f"/proc/{workers[0]}/exe").exists():  # a zombie has none
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)


class Patience(ServeTest):
    """On a processor that computes 2,000 tokens in seconds."""

    def longest_halt(self, *flags):
        """Of a stream while another's prompt is computed, and what that took; the prompt's answer."""
        server = self.serve("--num-threads", "1", "--max-model-len", "2048", *flags, small=False, environment=SLOW_CPU)
        stream = server.stream("/v1/completions", {**STORY, "max_tokens": 2000})
        for _ in range(20):
            next(stream)
        times, span = [], []

        def work(i):
            if i == 0:
                begin = time.monotonic()
                answer = server.post("/v1/completions", {**GREEDY, "prompt": [10 + j % 500 for j in range(LONG)]})
                span.extend((begin, time.monotonic()))
                return answer.json["choices"][0]["text"]
            while not span:
                next(stream)
                times.append(time.monotonic())
            return None

        text = in_parallel(2, work)[0]
        begin, end = span
        inside = [begin, *(t for t in times if begin < t < end), end]
        return max(b - a for a, b in itertools.pairwise(inside)), end - begin, text

    def test_a_stream_goes_on_while_a_long_prompt_is_computed(self):
        halt, whole, text = self.longest_halt("--max-step-seconds", "0.1")
        self.assertLess(halt, whole / 4)
        halt, whole, same = self.longest_halt("--max-step-seconds", "0")
        self.assertGreater(halt, whole / 2)  # as it was computed in one step
        self.assertEqual(text, same)


class Healing(ServeTest):
    def test_a_thought_ends_at_the_same_token_when_its_worker_is_killed(self):
        server = thinking_server("--deterministic")
        self.addCleanup(server.close)
        body = {**CHAT, "max_tokens": 200, "temperature": 0.9, "seed": 3, "thinking_token_budget": 100}
        parts = ("reasoning", "content")

        def added(events):
            deltas = [choice["delta"] for event in events if event != "[DONE]" for choice in event["choices"]]
            return ["".join(delta.get(part) or "" for delta in deltas) for part in parts]

        whole = [server.post("/v1/chat/completions", body).json["choices"][0]["message"][part] for part in parts]
        self.assertTrue(all(whole))
        for count in (1, 60, 103):
            stream = server.stream("/v1/chat/completions", body)
            events = list(itertools.islice(stream, count))
            os.kill(server.workers()[0], signal.SIGKILL)
            self.assertEqual(added(events + list(stream)), whole, count)

    def test_a_context_that_nobody_asked_for_is_what_one_request_has_room_for(self):
        server = self.serve("--kv-cache-memory", "4M", "--deterministic", small=False)
        server.wait_for(r"max_model_len is 1025 \(what the KV cache holds of 2048 tokens, the model's own\), and the KV cache has 1024 tokens \(kv_cache_memory\)\n")

        def longest():
            length = server.get("/v1/models").json["data"][0]["max_model_len"]
            answer = server.post("/v1/completions", {"prompt": [5] * 1000, "max_tokens": length - 1000, "ignore_eos": True, "temperature": 0})
            return length, answer.json["usage"]["total_tokens"], answer.json["choices"][0]["text"]

        first = longest()
        self.assertEqual(first[:2], (1025, 1025))
        os.kill(server.workers()[0], signal.SIGKILL)
        server.wait_for("Worker 0 is ready again")
        self.assertEqual(longest(), first)
        self.assertEqual(server.post("/v1/completions", {"prompt": [5] * 1025, "max_tokens": 1}).status, 400)

    def test_a_stream_goes_on_when_its_worker_is_killed(self):
        server = self.serve("--deterministic")
        body = {**STORY, "max_tokens": 300, "temperature": 0.9, "seed": 3, "logprobs": 2}
        whole = server.post("/v1/completions", body).json["choices"][0]
        rng = random.Random(1)
        for restarts in (1, 2, 3):
            stream = server.stream("/v1/completions", body)
            events = list(itertools.islice(stream, rng.randint(1, 100)))
            os.kill(server.workers()[0], signal.SIGKILL)
            events += list(stream)
            self.assertEqual(events[-1], "[DONE]")
            self.assertEqual(text_of(events), whole["text"])
            logprobs = [value for event in events[:-1] for choice in event["choices"] for value in choice["logprobs"]["token_logprobs"]]
            self.assertEqual(logprobs, whole["logprobs"]["token_logprobs"])
            server.wait_restarts(restarts)  # a stream may have had all its tokens when its worker was killed
        server.wait_for(r"\n\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z nanovllm: Worker 0 was ended by SIGKILL\. It is started again; ")

    def test_with_drafts_the_answer_is_the_same_when_a_worker_is_killed(self):
        story = "Once upon a time there was a little dog. The dog was very happy. " * 4
        body = {**STORY, "prompt": story, "max_tokens": 200, "logprobs": 2, "stream_options": {"include_usage": True}}
        bodies = [{**body, "temperature": temperature, "seed": 3} for temperature in (0, 0.7)]

        def added(events):
            choices = [choice for event in events[:-1] for choice in event["choices"]]
            logprobs = [value for choice in choices for value in choice["logprobs"]["token_logprobs"]]
            return text_of(events), logprobs, choices[-1]["finish_reason"], {**events[-2]["usage"], "prompt_tokens_details": None}

        plain = self.serve("--deterministic")
        wanted = [added(list(plain.stream("/v1/completions", body))) for body in bodies]
        server = self.serve("--deterministic", "--speculative-config", '{"method": "suffix"}')
        restarts = 0
        for body, whole in zip(bodies, wanted):
            events = list(server.stream("/v1/completions", body))
            self.assertEqual(added(events), whole)
            self.assertGreater(max(len(choice["logprobs"]["token_logprobs"]) for event in events[:-1] for choice in event["choices"]), 2)
            self.assertGreater(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 0)
            for count in (1, 10, 25):
                stream = server.stream("/v1/completions", body)
                events = list(itertools.islice(stream, count))
                os.kill(server.workers()[0], signal.SIGKILL)
                events += list(stream)
                self.assertEqual(added(events), whole, count)
                restarts += 1
                server.wait_restarts(restarts)

    def test_without_a_worker_it_says_so_and_ends(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        shutil.copytree(MODEL, os.path.join(folder.name, "model"))
        server = self.serve("--worker-start-timeout", "3", "--served-model-name", "demo", model=os.path.join(folder.name, "model"))
        stream = server.stream("/v1/completions", {**STORY, "max_tokens": 450})
        events = [next(stream)]
        os.rename(os.path.join(folder.name, "model"), os.path.join(folder.name, "gone"))
        os.kill(server.workers()[0], signal.SIGKILL)
        while server.get("/health").status == 200:
            time.sleep(0.01)
        for body in (STORY, {**STORY, "stream": True}):
            refused = server.post("/v1/completions", body)
            self.assertEqual((refused.status, refused.getheader("retry-after")), (503, "1"), refused.text)
            self.assertIn("No worker is ready", refused.text)
        self.assertEqual(server.get("/v1/models").status, 200)
        events += list(stream)
        self.assertEqual(events[-2]["error"]["code"], 503)
        self.assertEqual(server.process.wait(60), 1)
        self.assertRegex(server.log().splitlines()[-1], r"Z nanovllm: No worker was ready for 3 s: .*/model.* Where loading takes longer, raise --worker-start-timeout\.$")
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str
        unit.read(pathlib.Path(__file__).parent.parent / "deploy" / "nanovllm.service")
        self.assertEqual(unit["Service"]["Restart"], "on-failure")
        self.assertFalse({"RestartPreventExitStatus", "SuccessExitStatus"} & set(unit["Service"]))

    def test_a_log_that_nobody_reads_stops_nothing(self):
        ours, theirs = os.pipe()
        process = subprocess.Popen([BINARY, "serve", MODEL, "--port", "0", *SMALL], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        os.close(theirs)
        read = b""
        while b"ready: " not in read:
            self.assertTrue(piece := os.read(ours, 65536), read)
            read += piece
        port = int(re.search(rb"listening on http://127.0.0.1:(\d+)", read).group(1))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        count = 8000
        for _ in range(count):  # more lines than a pipe and the buffer hold
            connection.request("GET", "/ping")
            connection.getresponse().read()
        connection.request("POST", "/v1/completions", json.dumps(STORY), {"Content-Type": "application/json"})
        self.assertEqual(connection.getresponse().status, 200)
        while not (found := re.search(rb"nanovllm: (\d+) lines of the log were dropped, because nobody read it\n", read)):
            self.assertTrue(piece := os.read(ours, 65536), read[-300:])
            read += piece
        self.assertGreater(int(found.group(1)), 100)
        told = read[:found.start()].count(b"/ping")
        self.assertLess(told, count)
        self.assertLessEqual(abs(told + int(found.group(1)) - count), 20)  # and some of other requests
        process.terminate()
        while os.read(ours, 65536):
            pass
        self.assertEqual(process.wait(60), 0)
        os.close(ours)

    def test_idle_connections_leave_descriptors_for_a_new_worker(self):
        server = self.serve(limits={resource.RLIMIT_NOFILE: (100, 200)})
        server.wait_for("warning: there may be 1[0-9][0-9] connections, not 4096, ")
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(400)]
        stream = server.stream("/v1/completions", {**STORY, "max_tokens": 300})
        events = [next(stream)]
        os.kill(server.workers()[0], signal.SIGKILL)
        events += list(stream)
        self.assertEqual(events[-1], "[DONE]")
        server.wait_for("Worker 0 is ready again")
        self.assertEqual(server.post("/v1/completions", STORY).status, 200)
        for connection in idle:
            connection.close()

    def test_a_worker_that_hangs_is_replaced(self):
        server = self.serve("--deterministic", "--worker-timeout", "1.5")
        whole = server.post("/v1/completions", {**STORY, "max_tokens": 300}).json["choices"][0]["text"]
        stream = server.stream("/v1/completions", {**STORY, "max_tokens": 300})
        events = [next(stream)]
        os.kill(server.workers()[0], signal.SIGSTOP)
        events += list(stream)
        self.assertEqual(text_of(events), whole)

    def test_a_step_may_take_longer_than_a_worker_is_waited_for(self):
        server = self.serve("--num-threads", "1", "--worker-timeout", "1", "--max-model-len", "2048", small=False, environment=SLOW_CPU)
        prompts = [[10 + (7 * i + j) % 500 for j in range(LONG)] for i in range(4)]
        start = time.monotonic()
        answer = server.post("/v1/completions", {"prompt": prompts, "max_tokens": 1})
        self.assertGreater(time.monotonic() - start, 2, "it was too fast to show anything")
        self.assertEqual([choice["finish_reason"] for choice in answer.json["choices"]], ["length"] * 4)
        self.assertNotIn("started again", server.log())

    def test_many_streams_survive_several_deaths(self):
        server = self.serve("--deterministic", "--data-parallel-size", "2")
        bodies = [{**STORY, "prompt": f"{i} little", "max_tokens": 150, "seed": i, "temperature": 0.7} for i in range(24)]
        wanted = [server.post("/v1/completions", body).json["choices"][0]["text"] for body in bodies]
        rng = random.Random(2)

        def work(i):
            if i == len(bodies):
                for _ in range(3):
                    time.sleep(rng.uniform(0.1, 0.5))
                    os.kill(rng.choice(server.workers()), signal.SIGKILL)
                return None
            return text_of(server.stream("/v1/completions", bodies[i]))

        self.assertEqual(in_parallel(len(bodies) + 1, work)[:-1], wanted)


if __name__ == "__main__":
    unittest.main()
