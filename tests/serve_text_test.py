"""Streams of ids that are chance: never half a character, never another text than the whole answer's."""
import contextlib
import json
import os
import random
import tempfile
import unittest

from serve_testing import MODEL, Server

# Characters of one to four bytes; the demo model's tokenizer has a token for each byte and, beside ASCII, few for more.
CHARACTERS = "aé中😀߿࠿\U0010ffff"


def byte_tokens():
    """The bytes of each token that stands in the vocabulary as GPT-2 writes bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    written = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
    with open(os.path.join(MODEL, "tokenizer.json"), encoding="utf-8") as file:
        vocabulary = json.load(file)["model"]["vocab"]
    return {token: bytes(written[c] for c in text) for text, token in vocabulary.items() if all(c in written for c in text)}


class RandomText(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)
        cls.bytes_of = byte_tokens()
        wanted = {bytes([byte]) for byte in CHARACTERS.encode()}
        cls.bias = {str(token): 100 for token, data in cls.bytes_of.items() if data in wanted}
        assert len(cls.bias) == len(wanted), "the tokenizer lacks bytes"

    def chunks(self, path, body):
        """The chunks of a stream, each of which is UTF-8 and has no half of a surrogate pair."""
        connection = self.server.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        self.assertEqual(answer.status, 200, data)
        events = [event for event in data.split(b"\n\n") if event]
        self.assertEqual(events.pop(), b"data: [DONE]")
        for event in events:
            chunk = json.loads(event.removeprefix(b"data: ").decode("utf-8"))
            json.dumps(chunk, ensure_ascii=False).encode("utf-8")
            yield from chunk["choices"]

    def check(self, path, body):
        """Compares the stream with the whole answer; returns its texts and tokens, by choice."""
        whole = self.server.post(path, body)
        self.assertEqual(whole.status, 200, whole.text)
        is_chat = "chat" in path
        count = len(whole.json["choices"])
        texts, ids, logprobs = [""] * count, [[] for _ in range(count)], [[] for _ in range(count)]
        for choice in self.chunks(path, body):
            i = choice["index"]
            piece = (choice["delta"].get("content") or "") if is_chat else choice["text"]
            texts[i] += piece
            ids[i] += choice.get("token_ids") or []
            if choice.get("logprobs"):
                logprobs[i] += choice["logprobs"]["content"] if is_chat else list(zip(*choice["logprobs"].values()))
        for i, choice in enumerate(whole.json["choices"]):
            self.assertEqual(texts[i], choice["message"]["content"] if is_chat else choice["text"], (path, body))
            self.assertEqual(ids[i], choice["token_ids"], (path, body))
            if choice["logprobs"]:
                self.assertEqual(logprobs[i], choice["logprobs"]["content"] if is_chat else list(zip(*choice["logprobs"].values())), (path, body))
        return list(zip(texts, ids))

    def bodies(self, num_seeds):
        """Both APIs, with and without log-probabilities, with tokens of all kinds and with single bytes alone."""
        for seed in range(num_seeds):
            for bias in ({}, self.bias):
                body = {"max_tokens": 80, "temperature": 2, "seed": seed, "n": 2, "ignore_eos": True, "skip_special_tokens": False,
                        "logit_bias": bias, "frequency_penalty": 2 if bias else 0, "return_token_ids": True}
                for more in ({}, {"logprobs": 3}):
                    yield "/v1/completions", {**body, "prompt": "Once é", **more}
                for more in ({}, {"logprobs": True, "top_logprobs": 3}):
                    yield "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": "😀"}], **more}

    def test_a_stream_has_whole_characters_and_is_the_whole_answer(self):
        lengths = set()
        for path, body in self.bodies(2):
            for text, ids in self.check(path, body):
                lengths |= {len(character.encode()) for character in text if character != "\ufffd"} | ({0} if "\ufffd" in text else set())
                if all(token in self.bytes_of for token in ids):
                    data = b"".join(self.bytes_of[token] for token in ids)
                    self.assertEqual(text, data.decode("utf-8", errors="replace"), (path, body))
        self.assertEqual(lengths, {0, 1, 2, 3, 4}, "the random ids don't try characters of all lengths, and what is none")

    def test_a_stop_text_of_any_bytes_ends_it_right_before(self):
        rng = random.Random(4)
        for path, body in self.bodies(1):
            [(text, _)] = self.check(path, {**body, "n": 1})
            start = rng.randrange(len(text) - 3)
            stop = text[start:start + rng.randint(1, 3)]
            [(before, _)] = self.check(path, {**body, "n": 1, "stop": [stop, "not there \ufffd"]})
            self.assertEqual(before, text[:text.index(stop)], (path, body, stop))


class TagsAreTokens(unittest.TestCase):
    """The demo model with another text for one of its special tokens."""
    TAG = "</think>"

    def test_the_first_end_of_a_thought_is_the_only_one(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(MODEL):
                if name.startswith("tokenizer"):
                    with open(os.path.join(MODEL, name), encoding="utf-8") as file:
                        text = file.read()
                    assert "<|endoftext|>" in text
                    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                        file.write(text.replace("<|endoftext|>", self.TAG))
                else:
                    os.symlink(os.path.abspath(os.path.join(MODEL, name)), os.path.join(folder, name))
            with contextlib.closing(Server("--reasoning-parser", "qwen3", model=folder)) as server:
                token = server.post("/tokenize", {"prompt": self.TAG}).json["tokens"]
                self.assertEqual(len(token), 1)
                body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "ignore_eos": True,
                        "logit_bias": {str(token[0]): 100}, "return_token_ids": True}
                [choice] = server.post("/v1/chat/completions", body).json["choices"]
                self.assertEqual(choice["token_ids"], token * 3)
                self.assertEqual(choice["message"]["content"], self.TAG * 2)
                self.assertIsNone(choice["message"]["reasoning"])
                events = server.post("/v1/chat/completions", {**body, "stream": True}).text.split("\n\n")
                chunks = [json.loads(event.removeprefix("data: ")) for event in events if event and "[DONE]" not in event]
                deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
                self.assertEqual("".join(delta.get("content") or "" for delta in deltas), self.TAG * 2)
                self.assertFalse(any(delta.get("reasoning") for delta in deltas))


class ParsersOfFamilies(unittest.TestCase):
    """The demo model with the template of gpt-oss, whose channels it knows nothing of."""
    TEMPLATE = os.path.join(os.path.dirname(__file__), "data", "chat_templates", "openai-gpt-oss-120b.jinja")
    TOOLS = [{"type": "function", "function": {"name": "f", "description": "Does it.", "parameters": {"type": "object"}}}]

    def test_the_template_chooses_them_and_gets_the_effort(self):
        with contextlib.closing(Server("--chat-template", self.TEMPLATE, "--kv-cache-memory", "64M", small=False)) as server:
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "temperature": 0, "tools": self.TOOLS}
            for effort in ("low", "medium", "high"):
                answer = server.post("/v1/chat/completions", {**body, "reasoning_effort": effort, "return_prompt_text": True})
                self.assertEqual(answer.status, 200, answer.text)
                self.assertIn(f"Reasoning: {effort}\n", answer.json["prompt_text"])
                self.assertIn("type f = () => any;", answer.json["prompt_text"])
            # Words without a channel are the answer, all of them.
            message = answer.json["choices"][0]["message"]
            self.assertIsNone(message["reasoning"])
            events = server.post("/v1/chat/completions", {**body, "reasoning_effort": "high", "stream": True}).text.split("\n\n")
            deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events if event and "[DONE]" not in event]
            self.assertEqual("".join(delta.get("content") or "" for delta in deltas), message["content"])
            plain = server.post("/v1/completions", {"prompt": answer.json["prompt_text"], "max_tokens": 60, "temperature": 0,
                                                    "add_special_tokens": False})
            self.assertEqual(message["content"], plain.json["choices"][0]["text"])
            refused = server.post("/v1/chat/completions", {**body, "reasoning_effort": "minimal"})
            self.assertEqual(refused.status, 400)
            self.assertIn('reasoning_effort is "minimal", which this model does not know', refused.text.replace('\\"', '"'))

    def test_halves_of_two_families_do_not_start(self):
        with contextlib.closing(Server("--reasoning-parser", "openai_gptoss", "--tool-call-parser", "hermes", wait=False)) as server:
            server.wait_for("openai_gptoss goes with openai alone", 60)
            self.assertEqual(server.process.wait(60), 2)


if __name__ == "__main__":
    unittest.main()
