"""What happens between the messages of a chat and its prompt, on the real server: histories of tools, templates that can't be used, GGUF."""
import pathlib
import tempfile

from cli_testing import run
from serve_testing import MODEL, ServeTest, run_tests

DATA = pathlib.Path(__file__).parent / "data"
ASK = {"role": "user", "content": "Who is the cat?"}
BROKEN = "one line\n{% include 'x' %}\n"
LIMITS = ["--max-model-len", "128", "--max-num-seqs", "8", "--kv-cache-memory", "16M"]


def patched(data, old, new):
    """With another text of the same length in its place."""
    assert data.count(old) == 1 and len(new) == len(old), old
    return data.replace(old, new)


class ServeChat(ServeTest):
    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return pathlib.Path(folder.name)

    def test_the_second_turn_of_a_tool_loop_with_a_template_that_wants_short_ids(self):
        template = DATA / "chat_templates" / "mistralai-Mistral-Nemo-Instruct-2407.jinja"
        server = self.serve("--chat-template", template, "--default-chat-template-kwargs", '{"bos_token": "<s>", "eos_token": "</s>"}')

        def prompt_with(call_id):
            call = {"id": call_id, "type": "function", "function": {"name": "find", "arguments": '{"key": "a\nb"}'}}
            messages = [ASK, {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": None},
                        {"role": "tool", "tool_call_id": call_id, "content": "a pet"}]
            answer = server.post("/tokenize", {"messages": messages})
            self.assertEqual(answer.status, 200, answer.text)
            return server.post("/detokenize", {"tokens": answer.json["tokens"]}).json["prompt"]

        prompts = {call_id: prompt_with(call_id) for call_id in ("chatcmpl-tool-0123456789abcdef", "toolu_01A09q90qw", "call_1")}
        for call_id, prompt in prompts.items():
            self.assertNotIn(call_id, prompt)
            self.assertEqual(prompt, prompt_with(call_id))
        self.assertEqual(len(set(prompts.values())), 3)
        self.assertIn('"a1B2c3D4e"', prompt_with("a1B2c3D4e"))

    def test_a_template_that_can_not_be_used_refuses_chats_alone(self):
        folder = self.folder()
        for path in pathlib.Path(MODEL).iterdir():
            (folder / path.name).symlink_to(path.resolve())
        (folder / "chat_template.jinja").write_text(BROKEN, encoding="utf-8")
        sentence = f"{folder}/chat_template.jinja: chat template, line 2, column 4: the statement 'include' is not supported"
        server = self.serve(model=str(folder))
        self.assertIn(sentence, server.log())
        self.assertEqual(server.post("/v1/completions", {"model": str(folder), "prompt": "A cat", "max_tokens": 1}).status, 200)
        for path in ("/v1/chat/completions", "/tokenize"):
            answer = server.post(path, {"messages": [ASK], "max_tokens": 1})
            self.assertEqual(answer.status, 400, answer.text)
            self.assertIn(sentence, answer.json["error"]["message"])
        said = run("chat", folder, "-m", "x")
        self.assertEqual((said.returncode, said.stdout), (1, ""), said.stderr)
        self.assertIn(sentence, said.stderr)
        own = self.folder() / "own.jinja"
        own.write_text(BROKEN, encoding="utf-8")
        self.assertIn(f"{own}: chat template, line 2", run("serve", MODEL, "--port", "0", "--chat-template", own).stderr)
        self.assertIn(f"{own}: chat template, line 2", run("chat", MODEL, "-m", "x", "--chat-template", own).stderr)

    def test_a_gguf_file_gets_the_bos_that_it_asks_for_once(self):
        data = (DATA / "gguf_llama.gguf").read_bytes()
        bos = 316
        server = self.serve(*LIMITS, model=str(DATA / "gguf_llama.gguf"), small=False)
        for fields in ({}, {"add_special_tokens": True}, {"chat_template_kwargs": {"x": 1}}):
            tokens = server.post("/tokenize", {"messages": [ASK], **fields}).json["tokens"]
            self.assertEqual((tokens[0], tokens.count(bos)), (bos, 1))
        answer = server.post("/v1/chat/completions", {"messages": [ASK], "max_tokens": 1, "return_token_ids": True})
        self.assertEqual((answer.json["prompt_token_ids"][0], answer.json["prompt_token_ids"].count(bos)), (bos, 1))
        key = b"tokenizer.ggml.add_bos_token\x07\x00\x00\x00"
        without = self.folder() / "without.gguf"
        without.write_bytes(patched(data, key + b"\x01", key + b"\x00"))
        server = self.serve(*LIMITS, model=str(without), small=False)
        self.assertNotIn(bos, server.post("/tokenize", {"messages": [ASK]}).json["tokens"])

    def test_a_gguf_file_may_have_no_eos_and_a_template_that_can_not_be_used(self):
        data = (DATA / "gguf_llama.gguf").read_bytes()
        key = b"tokenizer.ggml.eos_token_id\x04\x00\x00\x00"
        data = patched(data, key + b"\x3e\x01\x00\x00", key + b"\xff\xff\xff\xff")
        begin = data.index(b"{%- for message in messages %}")
        construct = b"{% include 'x' %}          \n\n\n"
        data = data[:begin] + construct[:30] + data[begin + 30:]
        path = self.folder() / "broken.gguf"
        path.write_bytes(data)
        server = self.serve(*LIMITS, model=str(path), small=False)
        sentence = f"{path}: tokenizer.chat_template: chat template, line 1, column 4: the statement 'include' is not supported"
        self.assertIn(sentence, server.log())
        self.assertEqual(server.post("/v1/completions", {"prompt": "A cat", "max_tokens": 2, "ignore_eos": False}).status, 200)
        answer = server.post("/v1/chat/completions", {"messages": [ASK], "max_tokens": 1})
        self.assertEqual(answer.status, 400)
        self.assertEqual(answer.json["error"]["message"][:len(sentence)], sentence)
        self.assertIn(sentence, run("chat", path, "-m", "x").stderr)


if __name__ == "__main__":
    run_tests()
