"""nanovllm chat, line by line."""
import json
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile
import unittest

from cli_testing import BINARY, MODEL, CliTest, lines, run


class Chat(CliTest):
    def test_chat_answers_and_obeys_commands(self):
        result = run("chat", MODEL, "--temperature", "0", "--max-tokens", "20", "--ignore-eos",
                     stdin="/help\nTell me a story about a dog.\n/params temperature=0.5\n/params nonsense=1\n/retry\n/clear\n/what\n/quit\nnever read\n")
        self.assertEqual(result.returncode, 3, result.stderr)  # some lines were refused
        self.assertIn("/system", result.stdout)
        self.assertIn("temperature=0.5", result.stdout)
        self.assertIn("nonsense", result.stderr)
        self.assertIn("/what", result.stderr)
        self.assertEqual(result.stderr.count("first after"), 2)  # the speed of two answers
        self.assertEqual(result.stderr.count("cut off at max_tokens=20"), 2)
        full = run("chat", MODEL, "--max-model-len", "48", "--ignore-eos", "-m", "Tell me a story about a dog.")
        self.assertIn("cut off: a conversation takes up to 48 tokens", full.stderr)
        small = run("chat", MODEL, "--max-model-len", "40", "--max-tokens", "4", "--ignore-eos",
                    stdin="Hi\n" + "Tell me a story about a dog.\n" * 2 + "/clear\n" + "Tell me a story. " * 9 + "\n")
        self.assertEqual(small.returncode, 3, small.stderr)
        self.assertRegex(small.stderr, r"has \d+ tokens and may have 40; /clear starts over\n")
        self.assertRegex(small.stderr, r"has \d+ tokens and may have 40\n")
        empty = run("chat", MODEL, "--max-tokens", "4", "--ignore-eos", "-m", "")
        self.assertIn("cut off at max_tokens=4", empty.stderr)
        whole = run("chat", MODEL, "--temperature", "0", "--stop", "a", "-m", "Tell me a story about a dog.")
        self.assertIn("first after", whole.stderr)
        self.assertNotIn("cut off", whole.stderr)
        odd = subprocess.run([BINARY, "chat", MODEL, "--max-tokens", "2"], capture_output=True, timeout=300,
                             input=b"/params temperature=\xff\n/params n=2\n/params stop=\xff\nHi\n")
        self.assertEqual(odd.returncode, 3, odd.stderr)
        self.assertEqual(odd.stderr.count(b"first after"), 1, odd.stderr[:999])
        for flag in ("-n", "--logprobs", "--prompt-logprobs"):
            self.assertEqual(run("chat", MODEL, "-m", "x", flag, "2").returncode, 2)
        one = run("chat", MODEL, "--temperature", "0", "--max-tokens", "20", "-m", "Tell me a story about a dog.")
        self.assertTrue(one.stdout.strip())
        self.assertEqual(run("chat", MODEL, "--max-tokens", "2", stdin="Hi\n").returncode, 0)
        for command in (["chat", "/nonexistent", "-m", "x"], ["tokenize", "/nonexistent", "x"]):
            self.assertIn("/nonexistent: no such folder", run(*command).stderr)

    def test_chat_gives_the_template_tools_kwargs_and_special_tokens(self):
        with tempfile.TemporaryDirectory() as folder:
            template, tools = pathlib.Path(folder, "t.jinja"), pathlib.Path(folder, "tools.json")
            template.write_text("{{ raise_exception([eos_token, tools | tojson, enable_thinking] | join(' / ')) }}")
            tools.write_text('[{"type": "function", "function": {"name": "f"}}]')
            flags = {"--chat-template": template, "--tools": tools, "--chat-template-kwargs": '{"enable_thinking": false}', "-m": "x"}
            chat = lambda changed: run("chat", MODEL, *[part for flag in (flags | changed).items() for part in flag])
            result = chat({})
            self.assertEqual(result.returncode, 1)
            self.assertIn('<|im_end|> / [{"type": "function", "function": {"name": "f"}}] / False', result.stderr)
            for flag, value in (("--chat-template", "/nonexistent.jinja"), ("--tools", template), ("--chat-template-kwargs", "[]")):
                result = chat({flag: value})
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(str(value), result.stderr)
            deep = "[" * 300000 + "]" * 300000
            tools.write_text(deep)
            result = run("chat", MODEL, "--tools", tools, "-m", "x")
            self.assertEqual(result.returncode, 1)
            self.assertIn("nested deeper", result.stderr)
            result = run("chat", MODEL, stdin=f"/params temperature={deep}\n")
            self.assertEqual(result.returncode, 3)
            self.assertIn("nested deeper", result.stderr)
            pipe = pathlib.Path(folder, "pipe")
            os.mkfifo(pipe)
            for flag in ("--chat-template", "--tools"):
                for path in (folder, pipe, "/dev/zero"):
                    self.assert_one_sentence(chat({flag: path}), f"{path}: not a regular file")
            template.write_text("one\n{% if %}")
            self.assertIn("line 2, column", run("chat", MODEL, "--chat-template", template, "-m", "x").stderr)

    def test_a_small_kv_cache_bounds_the_answer(self):
        result = run("chat", MODEL, "--num-kvcache-blocks", "3", "--kvcache-block-size", "16", "--ignore-eos", "-m", "Hi")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("cut off: a conversation takes up to 49 tokens", result.stderr)

    def test_a_refused_retry_leaves_the_conversation_as_it_was(self):
        result = run("chat", MODEL, "--max-tokens", "2",
                     stdin="Hi\n/params stop_token_ids=[99999999]\n/retry\n/params stop_token_ids=[]\n/retry\n")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("stop_token_ids contain out-of-vocab", result.stderr)
        self.assertEqual(result.stderr.count("first after"), 2, result.stderr)

    def test_commands_that_take_nothing_say_so(self):
        commands = ("/quit", "/exit", "/help", "/clear", "/retry")
        result = run("chat", MODEL, stdin="".join(f"{command} \tnow\n" for command in commands) + "/clear\t \n/system\tx\n/quit\t\nHi\n")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(result.stderr, "".join(f"{command} takes nothing after it\n" for command in commands))
        self.assertEqual(result.stdout, "")  # what /clear and /system did is told on terminals

    def test_params_show_all_that_is_not_as_usual(self):
        first = ["--temperature", "0", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--repetition-penalty", "1", "--max-tokens", "5"]
        shown = "temperature=0 top_k=0 top_p=1 min_p=0 repetition_penalty=1 max_tokens=5"
        source = "\ntemperature 0 (--temperature)\n"
        self.assertEqual(run("chat", MODEL, *first, stdin="/params\n").stdout, shown + source)
        flags = ["--presence-penalty", "0.5", "--frequency-penalty", "-1", "--logit-bias", "5:-100,6:0.1", "--seed", "7", "--min-tokens", "2",
                 "--ignore-eos", "--stop", "a, \"b\"", "--stop", "c\x1b", "--stop-token-ids", "5,6", "--allowed-token-ids", "8", "--include-stop-str-in-output", "--no-skip-special-tokens",
                 "--bad-words", r"no\n", "--bad-words", r"\\never"]
        rest = (' presence_penalty=0.5 frequency_penalty=-1 logit_bias={"5":-100,"6":0.1} seed=7 min_tokens=2 ignore_eos=true '
                r'stop=["a, \"b\"","c\u001b"] stop_token_ids=[5,6] allowed_token_ids=[8] bad_words=["no\n","\\never"] include_stop_str_in_output=true skip_special_tokens=false')
        self.assertEqual(run("chat", MODEL, *first, *flags, stdin="/params\n").stdout, shown + rest + source)
        words = rest.replace("a, ", "a,")  # what is shown without blanks can be given again
        self.assertEqual(run("chat", MODEL, *first, stdin=f"/params {words}\n").stdout, shown + words + source)
        one = run("chat", MODEL, *first, stdin="/params stop=a,b\n")
        self.assertEqual(one.stdout, shown + ' stop=["a,b"]' + source)

    def test_params_say_where_the_temperature_comes_from(self):
        def said(model, *flags, params=""):
            result = run("chat", model, *flags, stdin=f"/params top_p=1{params}\n/params temperature=9\n/params\n")
            self.assertEqual((result.returncode, result.stderr.count("\n")), (3, 1), result.stderr)
            first, again = result.stdout.splitlines()[1::2]
            self.assertEqual(first, again)
            return first

        model = self.path("model")
        shutil.copytree(MODEL, model)
        config = json.loads((model / "generation_config.json").read_text())
        for value, source in ((0.25, "temperature 0.25 (generation_config.json)"), (1, "temperature 1 (generation_config.json)"),
                              (None, "temperature 1 (the default, as the model names none)")):
            (model / "generation_config.json").write_text(json.dumps(config | {"temperature": value}))
            self.assertEqual(said(model), source)
            self.assertEqual(said(model, "--temperature", "0.5"), "temperature 0.5 (--temperature)")
            self.assertEqual(said(model, "--temperature", "0.5", params=" temperature=0.75"), "temperature 0.75 (/params)")
            self.assertEqual(said(model, "--temperature", "0.5", params=" temperature=null"), "temperature 0.5 (--temperature)")
        (model / "generation_config.json").unlink()
        self.assertEqual(said(model), "temperature 1 (the default, as the model names none)")

    def test_lines_may_end_as_in_windows_and_commands_with_blanks(self):
        for text in ("Hi\r\n\r\n/quit\r\nHi\r\n", "Hi\n\n/quit \t\nHi\n"):
            result = run("chat", MODEL, "--max-tokens", "2", stdin=text)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stderr.count("first after"), 1, result.stderr)

    def test_deep_kwargs_are_refused(self):
        result = run("chat", MODEL, "-m", "x", "--chat-template-kwargs", '{"a": ' + "[" * 60000 + "]" * 60000 + "}")
        self.assert_one_sentence(result, "wants a JSON object", status=2)

    def messages_of(self, stdin, *args):
        """What the template was given with each message, of a chat whose template answers nothing, and what else was said."""
        template = self.path("messages.jinja", "{{ raise_exception(messages | tojson) }}")
        result = run("chat", MODEL, "--chat-template", template, *args, stdin=stdin)
        self.assertEqual(result.returncode, 3, result.stderr)
        given, said = [], []
        for line in result.stderr.splitlines():
            begin = line.find("[{") if line.startswith("chat template") else -1
            given.append(json.loads(line[begin:])) if begin >= 0 else said.append(line)
        return given, said

    def texts_of(self, stdin):
        given, said = self.messages_of(stdin)
        return [messages[-1]["content"] for messages in given], said

    def test_messages_of_several_lines(self):
        for text, messages in (
                ("a\\\n b \\\n\\\nc\\d\ne\n", ["a\n b \n\nc\\d", "e"]),
                ("a\\\r\nb\r\n", ["a\nb"]),
                ("a\\", ["a"]),  # the input ends
                ("a\\\n", ["a"]),
                ('"""\n/quit\n\n"" \\\n"""x\n"""\ne\n', ['/quit\n\n"" \\\n"""x', "e"]),
                ('"""a\nb""" \t\n"""/help"""\n""""\n"""\n', ["a\nb", "/help", '"']),
                ('"""\n\na\n\n"""\n', ["\na\n"]),
                ('a """\nb"""\n', ['a """', 'b"""']),
                ("/x\\\ny\n//\\\n\n", ["/x\ny", "//\n"])):  # several lines that name no command
            self.assertEqual(self.texts_of(text), (messages, []), text)
        self.assertEqual(self.messages_of("/system\\\nBe\\\nkind.\nHi\n")[0][0][0], {"role": "system", "content": "Be\nkind."})

    def test_quotes_without_end_are_told(self):
        for text in ('"""', '"""a\nb"" "\n', '"""""\n'):
            self.assertEqual(self.texts_of("e\n" + text), (["e"], ['the text that begins with """ has no """ at the end of a line']), text)

    def test_a_text_of_many_lines_has_the_limit_of_one(self):
        for begin, middle, end in (('"""', "", '"""'), ("", "\\", "")):
            room = (64 << 20) - len(begin) - len(end) - 2  # two newlines
            half = "x" * (room // 2)
            for rest, fits in ((room - len(half), True), (room - len(half) + 1, False)):
                text = f"{begin}{half}{middle}\n{half}{'x' * (rest - len(half))}{middle}\n{end}\ne\n"
                result = run("chat", MODEL, "--chat-template", self.path("one.jinja", "{{ raise_exception(messages[-1].content | length) }}"), stdin=text)
                self.assertEqual("the text is longer than 64 MiB" not in result.stderr, fits, result.stderr[:999])
                self.assertEqual(len(result.stderr.splitlines()), 2, result.stderr[:999])

    def test_a_conversation_is_saved_and_loaded(self):
        file = self.path("kept.json")
        result = run("chat", MODEL, "--temperature", "0", "--max-tokens", "5", "--system", "Be kind.", stdin=f'Grüße "小猫"\\\n!\n/save {file} \t\n')
        self.assertEqual((result.returncode, result.stderr.count("\n")), (0, 1), result.stderr)
        kept = json.loads(file.read_text())
        self.assertEqual(kept, [{"role": "system", "content": "Be kind."}, {"role": "user", "content": 'Grüße "小猫"\n!'},
                                {"role": "assistant", "content": result.stdout[:-1]}])
        given, said = self.messages_of(f"/load {file}\nGo on\n/clear\nHi\n")
        self.assertEqual(given, [kept + [{"role": "user", "content": "Go on"}], kept[:1] + [{"role": "user", "content": "Hi"}]])
        self.assertEqual(said, [])
        again = run("chat", MODEL, "--temperature", "0", "--max-tokens", "5", stdin=f"/load {file}\n/retry\n/clear\n/save {file}\n")
        self.assertEqual((again.returncode, again.stdout), (0, result.stdout), again.stderr)
        self.assertEqual(json.loads(file.read_text()), kept[:1])

    def test_no_conversation_is_saved_over_files_in_use(self):
        model, trace = self.path("model"), self.path("trace.json")
        shutil.copytree(MODEL, model)
        before = {file.name: file.read_bytes() for file in model.iterdir()}
        for file, why in ((model / "tokenizer.json", f"is a file of the model {model}"), (trace, "is the file that --trace writes")):
            result = run("chat", model, "--trace", trace, stdin=f"/save {file}\n")
            self.assertEqual(result.returncode, 3)
            self.assertIn(f"/save {file} {why}; name another one", result.stderr)
        self.assertEqual({file.name: file.read_bytes() for file in model.iterdir()}, before)
        self.assertEqual(run("chat", model, stdin=f"/save {model / 'new.json'}\n").returncode, 0)

    def test_conversations_that_cannot_be_kept_or_loaded_are_told(self):
        def refused(command, sentence):
            result = run("chat", MODEL, "--max-tokens", "2", stdin=f"Hi\n{command}\n/save {kept}\n")
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertEqual(result.stderr.splitlines()[1:], [sentence])
            self.assertEqual([message["role"] for message in json.loads(kept.read_text())], ["user", "assistant"])  # it goes on

        kept, none = self.path("kept.json"), self.path("none")
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        for command in ("/save", "/load \t"):
            refused(command, f"{command.split()[0]} wants the name of a file")
        for command in (f"/save {none}\\\nmore", f"/load {kept}\\\nmore"):
            refused(command, f"{command.split()[0]} wants the name of a file on one line")
        refused(f"/save {none}/x", f"cannot save the conversation to {none}/x: No such file or directory")
        for path in (self.folder.name, fifo):
            refused(f"/save {path}", f"cannot save the conversation to {path}: not a regular file")
            refused(f"/load {path}", f"{path}: not a regular file")
        refused(f"/load {none}", f"{none}: no such file")
        message = '{"role": "user", "content": "x"}'
        for text, sentence in (("{}", ' must be a JSON list of messages such as {"role": "user", "content": "Hi"}'),
                               (f"[{message}, 1]", ', message 2: must be an object with "role" and "content"'),
                               ('[{"role": "user"}]', ', message 1: "content" must be there and be a text'),
                               ('[{"role": 1, "content": ""}]', ', message 1: "role" must be there and be a text'),
                               ('[{"role": "me\\n", "content": ""}]',
                                ', message 1: "role" must be one of system, developer, user, assistant, tool, not me?')):
            path = self.path("bad.json", text)
            refused(f"/load {path}", f"{path}{sentence}")
        path = self.path("bad.json", "[1,")
        result = run("chat", MODEL, stdin=f"/load {path}\n")
        self.assert_one_sentence(result, f"{path}: ", status=3)
        limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))}  # bytes
        result = run("chat", MODEL, "--system", "x" * 9, stdin=f"/save {kept}\n", **limit)
        self.assert_one_sentence(result, f"cannot save the conversation to {kept}: File too large", status=3)

    def test_only_an_answer_to_a_user_is_tried_again(self):
        for roles in (["assistant"], ["system", "assistant"], ["user", "assistant", "user"], []):
            file = self.path("loaded.json", json.dumps([{"role": role, "content": "x"} for role in roles]))
            result = run("chat", MODEL, stdin=f"/load {file}\n/retry\n")
            self.assertEqual((result.returncode, result.stderr), (3, "there is no answer to try again yet\n"), roles)

    def test_what_is_no_name_of_the_hub_is_a_path(self):
        result = run("chat", "Qwen3-0.6B", "-m", "x", cwd=self.folder.name)
        self.assert_one_sentence(result, "nanovllm: Qwen3-0.6B: no such folder or file; expected a Hugging Face model folder or a GGUF file, "
                                         "or OWNER/MODEL for one of the hub, such as Qwen/Qwen3-0.6B\n")
        for path in ("./model", "../own1/model", "/own1/model", "own1/a/model", "own1/", "/model", "~/model", "own1/mo del"):
            result = run("chat", path, "-m", "x", cwd=self.folder.name)
            self.assert_one_sentence(result, f"nanovllm: {path}: no such folder or file; expected a Hugging Face model folder or a GGUF file\n")


if __name__ == "__main__":
    unittest.main()
