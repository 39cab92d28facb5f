"""Memory of the front: what large requests and long answers take goes back, and small requests don't wait for them."""
import json
import os
import random
import string
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from serve_testing import ServeTest, in_parallel, run_tests  # noqa: E402

MIB = 1 << 20
LEFT = 64 * MIB  # that may be left of any load
LONGEST_TOKEN = 13  # bytes of the demo's tokenizer; NFC may make four bytes one
CONTEXT = 512
CHAT, COMPLETION, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"


def resident(server, key="VmRSS"):
    """Of the front, in bytes; VmHWM is the most since reset_peak()."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))


def reset_peak(server):
    with open(f"/proc/{server.process.pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def words(num_bytes):
    rng = random.Random(1)
    text = " ".join("".join(rng.choices(string.ascii_lowercase, k=rng.randint(1, 9))) for _ in range(20_000))
    return (text * (num_bytes // len(text) + 1))[:num_bytes]


def list_of(item, count):
    return "[" + ",".join([item] * count) + "]"


def chat_of(count):
    return '{"messages":' + list_of('{"role":"user","content":"a"}', count) + "}"


class Memory(ServeTest):
    def setUp(self):
        self.server = self.serve()
        for _ in range(3):
            self.server.post(COMPLETION, {"prompt": "Once", "max_tokens": 4})
        time.sleep(1)
        self.before = resident(self.server)
        reset_peak(self.server)

    def assert_little_is_left(self):
        deadline = time.monotonic() + 20
        while (left := resident(self.server) - self.before) > LEFT:
            self.assertLess(time.monotonic(), deadline, f"{left / MIB:.0f} MiB are left")
            time.sleep(0.1)

    def assert_peak(self, most):
        self.assertLess(resident(self.server, "VmHWM") - self.before, most)

    def test_chats_of_900_000_messages_leave_nothing(self):
        for answer in in_parallel(4, lambda _: self.server.post(CHAT, chat_of(900_000))):
            self.assertEqual(answer.status, 400)
            self.assertRegex(answer.json["error"]["message"], "512 tokens.*900000 messages")
        self.assert_peak(400 * MIB)  # mostly the four bodies, of 26 MB each
        self.assert_little_is_left()

    def test_messages_and_texts_are_refused_behind_their_limits_alone(self):
        most = CONTEXT * LONGEST_TOKEN * 4
        self.assertRegex(self.server.post(CHAT, chat_of(CONTEXT + 1)).text, "has 513 messages")
        self.assertRegex(self.server.post(CHAT, chat_of(CONTEXT)).text, "at least 513 input tokens")
        for path in (COMPLETION, TOKENIZE):
            self.assertRegex(self.server.post(path, {"prompt": "a" * (most + 1)}).text, f"{most} bytes.*has {most + 1} bytes")
        self.assertRegex(self.server.post(COMPLETION, {"prompt": "a" * most}).text, "at least 513 input tokens")
        self.assertEqual(self.server.post(TOKENIZE, {"prompt": "a" * most}).status, 200)
        end = "<|im_end|>"
        self.assertEqual(self.server.post(COMPLETION, {"prompt": end * (CONTEXT - 1), "max_tokens": 1}).status, 200)
        ids = self.server.post(COMPLETION, {"prompt": [5] * (CONTEXT + 1)})
        self.assertRegex(ids.text, "512 tokens.*contains 513 input tokens")

    def test_small_requests_pass_large_ones(self):
        text = words(15_000_000)
        bodies = [(COMPLETION, json.dumps({"prompt": text})), (CHAT, json.dumps({"messages": [{"role": "user", "content": text}]})),
                  (TOKENIZE, json.dumps({"prompt": text})), (CHAT, chat_of(450_000))]
        threads = [threading.Thread(target=lambda body=body: refused.extend(self.server.post(*body).status for _ in range(2))) for body in bodies]
        refused, times = [], []
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            start = time.monotonic()
            self.assertEqual(self.server.post(COMPLETION, {"prompt": "a", "max_tokens": 1}).status, 200)
            times.append(time.monotonic() - start)
        self.assertEqual(refused, [400] * 2 * len(bodies))
        self.assertLess(sorted(times)[len(times) // 2], 0.2, "seconds, at the median")
        self.assertLess(max(times), 1.5, "seconds")
        self.assert_little_is_left()

    def test_whole_answers_with_log_probabilities_wait_in_few_bytes(self):
        count, tokens = 64, 480
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": tokens, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
        answers = in_parallel(count, lambda i: self.server.post(CHAT, {**body, "seed": i}))
        self.assert_peak(600 * count * tokens + 16 * MIB)  # 2,900 bytes a token once they were JSON
        for answer in answers:
            self.assertEqual(answer.getheader("Transfer-Encoding"), "chunked")
            content = answer.json["choices"][0]["logprobs"]["content"]
            self.assertEqual([len(token["top_logprobs"]) for token in content], [20] * tokens)
        short = self.server.post(CHAT, {**body, "max_tokens": 3})
        self.assertEqual(int(short.getheader("Content-Length")), len(short.text.encode()))
        self.assert_little_is_left()

    def test_whole_answers_are_what_streams_add_up_to(self):
        body = {"prompt": "Once upon", "max_tokens": 400, "ignore_eos": True, "logprobs": 20, "temperature": 0, "echo": True}
        whole = self.server.post(COMPLETION, body).json["choices"][0]
        lists = {}
        for event in self.server.stream(COMPLETION, body):
            for choice in [] if event == "[DONE]" else event["choices"]:
                for name, values in choice["logprobs"].items():
                    lists.setdefault(name, []).extend(values)
        self.assertEqual(lists, whole["logprobs"])
        self.assertEqual(len(lists["tokens"]), 402)

    def test_lists_that_are_long_leave_nothing(self):
        million = 1_000_000
        chat = '{"messages":[{"role":"user","content":%s}],"tool_choice":"none"%s}'
        completion = '{"prompt":"a","max_tokens":1,%s}'
        for path, body, status in (
                (COMPLETION, completion % ('"stop":' + list_of('"ab"', 4 * million)), 400),
                (COMPLETION, completion % ('"bad_words":' + list_of('"ab"', million)), 400),
                (COMPLETION, completion % ('"bad_words":' + list_of('"ab"', 4096)), 200),
                (COMPLETION, completion % ('"logit_bias":{' + ",".join(f'"{i}":1' for i in range(million)) + "}"), 400),
                (COMPLETION, completion % ('"x":' + list_of("[5]", 2 * million)), 200),
                (COMPLETION, '{"prompt":' + list_of("5", 4 * million) + "}", 400),
                (CHAT, chat % (list_of('{"type":"text","text":"a"}', million // 2), ""), 400),
                (CHAT, chat % ('"a"', ',"tools":' + list_of('{"function":{"name":"a"}}', million // 2)), 400)):
            with self.subTest(body=body[:60]):
                answer = self.server.post(path, body)
                self.assertEqual(answer.status, status, answer.text[:300])
                self.assertLess(len(answer.text), 2000)
                self.assert_little_is_left()


if __name__ == "__main__":
    run_tests()
