"""The real binary, end to end: good and bad input."""
import json
import os
import pathlib
import re
import resource
import shutil
import struct
import subprocess
import unittest

from cli_testing import BINARY, MODEL, SANITIZED, SMALL, CliTest, lines, run, run_watched


class CommandLine(CliTest):
    def test_help_names_every_command(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        for command in ("generate", "run-batch", "chat", "bench", "info", "tokenize"):
            self.assertIn(command, result.stdout)

    def test_every_command_has_help(self):
        for command in (["generate"], ["run-batch"], ["chat"], ["bench", "throughput"], ["bench", "latency"], ["info"], ["tokenize"]):
            result = run(*command, "--help")
            self.assertEqual(result.returncode, 0, command)
            self.assertIn("model", result.stdout)

    def test_help_fits_into_80_columns_and_names_every_default(self):
        commands = ([], ["generate"], ["chat"], ["bench"], ["bench", "throughput"], ["bench", "latency"], ["bench", "serve"], ["serve"], ["info"],
                    ["tokenize"], ["quantize"], ["pull"], ["list"], ["rm"])
        for command in commands:
            text = run(*command, "--help", env={**os.environ, "COLUMNS": "200", "OPENAI_API_KEY": "a secret"}).stdout
            with self.subTest(command):
                self.assertTrue(text.endswith("\n") and not text.endswith("\n\n"))
                self.assertIn(" ".join(["Usage: nanovllm", *command, "[OPTIONS]"]), text)
                for line in text.splitlines():
                    self.assertLessEqual(len(line), 80, line)
                    self.assertEqual(line, line.rstrip())
                self.assertNotRegex(text, r"\{false\}|\{true\}|=\S*\]|(TEXT|INT|FLOAT):[A-Z{]|INT in |REQUIRED|a secret|\x1b")
                entries = re.findall(r"(?m)^  (-\S+(?: \S+)?)((?:  .*|\n {31}.*)(?:\n {31}.*)*)", text)
                self.assertGreater(len(entries), 0)
                for name, meaning in entries:
                    takes_value = " " in name
                    self.assertEqual("(default: " in meaning.replace("\n" + " " * 31, " "), takes_value or ",--no-" in name, (name, meaning))
        for flag, value in (("--max-num-seqs", "512"), ("--max-model-len", "-1"), ("--dtype", "auto"), ("--temperature", "1"), ("--top-k", "0"),
                            ("--max-tokens", "64"), ("--seed", "none"), ("--stop", "none"), ("--gpu-memory-utilization", "0.9"), ("--output", "standard output"),
                            ("--n", "1")):
            text = re.sub(r"\n {31}", " ", run("generate", "--help").stdout)
            self.assertRegex(text, rf"(?m)^ .*{flag} [A-Z]+ .*\(default: {value}[;)]")
        text = re.sub(r"\n {31}", " ", run("serve", "--help").stdout)
        for flag, value in (("--worker-timeout", r"\d+"), ("--max-body-size", r"\d+K"), ("--port", "8000"), ("--api-key", "none"), ("--max-step-seconds", "-1")):
            self.assertRegex(text, rf"(?m)^  {flag} [A-Z]+(\.\.\.)? .*\(default: {value}\)")

    def test_help_says_what_only_gpus_have(self):
        for command in (["generate"], ["chat"], ["bench", "throughput"], ["bench", "latency"], ["info"]):
            groups = dict(re.findall(r"(?ms)^([A-Z][^\n]*):\n(.*?)(?=\n\n|\Z)", run(*command, "--help").stdout))
            flags = {name: set(re.findall(r"(?m)^  (--[\w-]+)", text)) for name, text in groups.items()}
            gpus = {"--first-gpu", "--gpu-memory-utilization", "--enforce-eager", "--deterministic"}
            self.assertEqual(flags["Engine, on GPUs only"], gpus)
            self.assertTrue({"--device", "--num-threads", "--engine-seed"} <= flags["Engine"])
            self.assertFalse(flags["Options"] & (gpus | flags["Engine"]), flags)

    def test_usage_errors_exit_with_2(self):
        for args in ([], ["generate"], ["nonsense"], ["generate", MODEL, "--no-such-flag"],
                     ["generate", MODEL, "-p", "x", "--input", "y"], ["info", MODEL, "--max-num-seqs", "many"],
                     ["info", MODEL, "--kv-cache-memory", "5 apples"], ["info", MODEL, "--trace", "/dev/null"],
                     ["generate", MODEL], ["generate", MODEL, "-p", "x", "--temperature", "-1"],
                     ["generate", "/nonexistent", "--input", "-", "--top-p", "0"], ["generate", MODEL, "-p", "x", "--logit-bias", "3"],
                     ["tokenize", MODEL, "--ids", "two"], ["chat", MODEL, "--chat-template-kwargs", "[]", "-m", "x"],
                     ["chat", MODEL, "--chat-template-kwargs", "{bad", "-m", "x"]):
            result = run(*args)
            self.assertEqual(result.returncode, 2, args)
            self.assertNotEqual(result.stderr, "")

    def test_every_parameter_of_the_reference_is_a_flag_and_a_name_in_json(self):
        page = (pathlib.Path(__file__).parent.parent / "docs/reference.md").read_text()
        names = re.findall(r"(?m)^\| `(\w+)` \|", page[:page.index("## Structured outputs")])
        self.assertIn("temperature", names)
        refused = run("generate", MODEL, "-q", "--input", "-", stdin='{"prompt": "x", "sampling_params": {"nonsense": 1}}\n')
        self.assertIn(f'unknown sampling parameter \\"nonsense\\"; there are {", ".join(names)}"', refused.stdout)
        flags = {flag.removeprefix("no-") for flag in re.findall(r" (?:-n,)?--([\w-]+)", run("generate", "--help").stdout)}
        self.assertIn("structured_outputs", names)  # whose fields have flags, each its own
        self.assertLessEqual({name.replace("_", "-") for name in names if name != "structured_outputs"}, flags)

    def test_the_context_and_the_kv_cache_are_what_the_model_needs(self):
        def info(*flags):
            result = run("info", MODEL, "--json", "--device", "cpu", *flags)
            return lines(result.stdout)[0], result.stderr
        facts, messages = info("--kv-cache-memory", "8M")
        self.assertEqual((facts["max_model_len"], messages), (2048, ""))
        facts, messages = info("--kv-cache-memory", "4M")
        self.assertEqual((facts["max_model_len"], facts["full_length_requests"], messages), (1025, 1, ""))  # the last token needs no room
        self.assertEqual(facts["sizing"], "max_model_len is 1025 (what the KV cache holds of 2048 tokens, the model's own), "
                                          "and the KV cache has 1024 tokens (kv_cache_memory)")
        facts, messages = info("--kv-cache-memory", "4M", "--max-model-len", "2048")  # as asked for
        self.assertEqual((facts["max_model_len"], facts["full_length_requests"], messages), (2048, 0, ""))
        facts, messages = info()
        self.assertLessEqual(facts["kv_cache_bytes"], 8 * facts["weight_bytes"] + (512 << 20))
        self.assertEqual((facts["max_model_len"], messages), (2048, ""))
        facts, messages = info("--max-num-seqs", "3")
        self.assertEqual(facts["kv_cache_bytes"], 3 * 2048 * facts["kv_bytes_per_token"])
        self.assertIn("(3 requests of that length, max_num_seqs)", facts["sizing"])

    def test_of_a_repeated_flag_the_last_counts(self):
        def tokens(*flags):
            return lines(run("generate", MODEL, "--json", "-q", "-p", "Once upon a time", *SMALL, *flags).stdout)[0]["token_ids"]
        self.assertEqual(len(tokens("--max-tokens", "5", "--max-tokens", "3")), 3)
        self.assertEqual(tokens("--max-tokens=3", "--max-tokens=5"), tokens("--max-tokens", "5"))
        self.assertEqual(tokens("--temperature", "2", "--seed", "1", "--seed", "2"), tokens("--temperature", "2", "--seed", "2"))
        self.assertEqual(lines(run("info", MODEL, "--json", "--kv-cache-memory", "64M", "--kv-cache-memory", "32M").stdout)[0]
                         ["kv_cache_bytes"], 32 << 20)
        latency = run("bench", "latency", MODEL, "--json", "-q", "--batch-size", "3", "--batch-size", "2", "--input-len", "8",
                      "--output-len", "2", "--num-iters", "1", "--num-warmup", "0", "--seed", "1", "--seed", "2")
        self.assertEqual(lines(latency.stdout)[0]["batch_size"], 2, latency.stderr)
        chat = run("chat", MODEL, "-m", "Hi", "-m", "Hello", "--max-tokens", "9", "--max-tokens", "2", "--device", "x", "--device", "cpu")
        self.assertEqual(chat.returncode, 0, chat.stderr)
        self.assertIn("2 tokens", chat.stderr)
        both = [word for i in range(1, 3) for word in ("--output", self.path(f"{i}.jsonl"))]
        self.assertEqual(run("generate", MODEL, "-q", "-p", "a", *both, *SMALL).returncode, 0)
        self.assertEqual([self.path(f"{i}.jsonl").exists() for i in (1, 2)], [False, True])
        self.assertEqual(run("generate", MODEL, "-p", "a", "--max-tokens", "x", "--max-tokens", "3").returncode, 2)  # as with vLLM

    def test_info_shows_layers_by_kind(self):
        def layers(name):
            return lines(run("info", str(pathlib.Path(__file__).parent / "goldens" / name), "--json", "--kv-cache-memory", "32M").stdout)[0]["layers"]
        heads = "4 query and 4 key-value heads of 16"
        self.assertEqual(layers("olmo3"), [f"1 layer: {heads}, MLP of 96", f"3 layers: {heads}, window of 20 tokens, MLP of 96"])
        self.assertEqual(layers("smollm3")[1], "1 layer: 4 query and 2 key-value heads of 16, no rotation, MLP of 96")
        self.assertEqual(layers("qwen3_5")[1:], ["3 layers: recurrent (gated delta rule), 2 key heads of 32, 4 value heads of 32, MLP of 96",
                                                 "1 layer: multi-token prediction, not used"])

    def test_a_list_of_texts_leaves_the_model(self):
        plain = ["-q", "--json", *SMALL]
        texts = [line["text"] for line in lines(run("generate", MODEL, "-p", "a", "b", *plain).stdout)]
        self.assertEqual(len(texts), 2)
        for args in (["-p", "a", "b", MODEL], ["-p", "a", MODEL, "-p", "b"], ["--prompt", "a", "b", "--model", MODEL]):
            result = run("generate", *args, *plain)
            self.assertEqual([line["text"] for line in lines(result.stdout)], texts, (args, result.stderr))
        for args in (["a", "x.gguf", "b"], ["Qwen/Qwen3-0.6B:Q8_0", "b"], ["a", "nowhere"]):
            result = run("generate", "-p", *args, "-q")
            self.assertEqual((result.returncode, result.stderr),
                             (2, "nanovllm: model is required, and -p took what is behind it; MODEL goes before it\n"))
        for args in (["generate"], ["generate", "-p", "a"], ["generate", "--input", "-"], ["chat", "-m", "a"], ["info"]):
            self.assertEqual(run(*args).stderr.splitlines()[0], "nanovllm: model is required")

    def test_sizes_that_no_machine_has_are_called_too_large(self):
        for size in ("9223372036854775807", "4611686018427387904", "4194304T"):
            result = run("info", MODEL, "--kv-cache-memory", size)
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stderr.splitlines()[0],
                             f"nanovllm: --kv-cache-memory: {size} is too large: it must be less than 4194304T")
        self.assert_one_sentence(run("info", MODEL, "--kv-cache-memory", "4194303T"), "are free")
        one = run("info", MODEL, "--kv-cache-memory", "1", "--kvcache-block-size", "16")
        self.assert_one_sentence(one, "kv_cache_memory is 1 byte, but one block", status=2)

    def test_a_file_of_requests_counts_its_lines_from_1_blank_ones_included(self):
        source = self.path("in.jsonl", '\n \t\r\n\n{"prompt": x}\n\n{"prompt": 1}\n')
        result = run("generate", MODEL, "-q", "--input", source)
        self.assertEqual(result.returncode, 3)
        first, second = result.stderr.splitlines()
        self.assertIn(f"{source}:4: the request: not valid JSON: parse error at line 4, column 12: ", first)
        self.assertTrue(second.startswith(f'nanovllm: {source}:6: "prompt" must be a text'), second)

    def test_unknown_commands_are_named(self):
        for args, what in ((["bogus"], 'command "bogus"'), (["bogus", MODEL, "-q"], 'command "bogus"'),
                           (["bench", "bogus"], 'command "bogus"'), (["--bogus"], 'option before a command "--bogus"'),
                           (["--temperature", "0", "generate", MODEL, "-p", "a"], 'option before a command "--temperature"'),
                           (["bench", "--json", "latency", MODEL], 'option before a command "--json"')):
            result = run(*args)
            self.assertEqual(result.returncode, 2, args)
            self.assertEqual(result.stderr, f"nanovllm: there is no {what}; --help lists those there are\n")
        for args, typed, meant in ((["sreve", MODEL], "sreve", "serve"), (["tok", MODEL, "a"], "tok", "tokenize"), (["genrate"], "genrate", "generate"),
                                   (["bench", "throughputs", MODEL], "throughputs", "throughput"), (["bench", "lat"], "lat", "latency")):
            result = run(*args)
            self.assertEqual((result.returncode, result.stderr), (2, f'nanovllm: there is no command "{typed}"; did you mean {meant}?\n'))
        for typed in ("to", "srvice", "ls", "latency"):  # the last one is a command of bench
            self.assertEqual(run(typed, MODEL).stderr, f'nanovllm: there is no command "{typed}"; --help lists those there are\n')
        self.assertEqual(run("bogus", "--help").returncode, 0)
        self.assertIn("subcommand", run("bench").stderr)  # none is named where none was given

    def test_numbers_below_their_least_are_told_shortly(self):
        flags = {"throughput": {"--num-prompts": 1, "--input-len": 1, "--output-len": 1},
                 "latency": {"--batch-size": 1, "--input-len": 1, "--output-len": 1, "--num-warmup": 0, "--num-iters": 1}}
        for command, leasts in flags.items():
            for flag, least in leasts.items():
                result = run("bench", command, "/nonexistent", flag, least - 1)
                self.assertEqual(result.returncode, 2, flag)
                self.assertEqual(result.stderr.splitlines()[0], f"nanovllm: {flag}: must be at least {least}, got {least - 1}")
                self.assertIn("/nonexistent", run("bench", command, "/nonexistent", flag, least).stderr)
                for wrong in ("99999999999", "1.5", "many"):
                    result = run("bench", command, "/nonexistent", flag, wrong)
                    self.assertEqual(result.returncode, 2, flag)
                    self.assertIn(f"{flag}: must be an integer up to 2147483647, got {wrong}", result.stderr)

    def test_values_that_are_no_numbers_are_told_by_their_flag(self):
        whole = "an integer up to 2147483647"
        for flag, value, what in (("--temperature", "hot", "a number"), ("--top-k", "1.5", whole), ("--max-tokens", "1e3", whole),
                                  ("--n", "99999999999", whole), ("--max-tokens", "010", whole), ("--max-tokens", "0x10", whole), ("--logprobs", "x", whole), ("--max-num-seqs", "many", whole),
                                  ("--gpu-memory-utilization", "", "a number")):
            result = run("generate", "/nonexistent", "-p", "x", flag, value)
            self.assertEqual(result.returncode, 2, flag)
            self.assertEqual(result.stderr.splitlines()[0], f"nanovllm: {flag}: must be {what}, got {value}")
        for flag in ("--max-tokens", "--temperature", "--seed"):  # what was pasted does not steer the terminal
            refused = run("generate", "/nonexistent", "-p", "x", flag, "\x1b[31m").stderr
            self.assertTrue(refused.splitlines()[0].endswith("got ?[31m"), refused)
        ids = run("generate", "/nonexistent", "-p", "x", "--stop-token-ids", "5,x")
        self.assertEqual(ids.stderr.splitlines()[0], f"nanovllm: --stop-token-ids: must be {whole}, got x")
        shown = run("generate", "--help").stdout
        for flag in ("--stop TEXT ", "--bad-words TEXT ", "--stop-token-ids INT ", "--allowed-token-ids INT ", "--logit-bias TEXT "):
            self.assertIn(flag, shown)
        self.assertNotRegex(shown, r"--(stop|bad-words|stop-token-ids|allowed-token-ids|logit-bias) \w+ \.\.\.")

    def test_values_out_of_range_are_told_in_one_line(self):
        for args, word in ((["--max-num-seqs", "0"], "max_num_seqs"), (["--kvcache-block-size", "17"], "kvcache_block_size"),
                           (["--tensor-parallel-size", "9"], "tensor_parallel_size"), (["--dtype", "int3"], "int3"),
                           (["--device", "toaster"], "toaster"),
                           (["--speculative-config", '{"method": "eagle"}'], "method must be suffix, ngram or draft_model")):
            result = run("info", MODEL, *args)
            self.assertEqual(result.returncode, 2, args)
            self.assertIn(word, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_seeds_are_64_bits_with_a_sign_and_every_other_is_refused_by_its_flag(self):
        least, most = -2 ** 63, 2 ** 63 - 1
        commands = {"--seed": (["generate"], ["chat"], ["bench", "throughput"], ["bench", "latency"]),
                    "--engine-seed": (["info"], ["chat"])}
        for flag, forms in commands.items():
            for command in forms:
                for seed in (least, -2, -1, most):  # taken: what is missing is the model
                    self.assertNotIn(flag, run(*command, "/nonexistent", flag, seed).stderr)
                for seed in (least - 1, most + 1, "99999999999999999999", "1.5", "many", ""):
                    result = run(*command, "/nonexistent", flag, seed)
                    self.assertEqual(result.returncode, 2, (command, seed))
                    self.assertEqual(result.stderr.splitlines()[0],
                                     f"nanovllm: {flag}: must be an integer from {least} to {most}, got {seed}")

    def test_runs_without_a_seed_draw_by_the_engine_s(self):
        def texts(*flags):
            return run("generate", MODEL, "-q", "-p", "Once upon a time", "--temperature", "2", "--max-tokens", "20", *flags).stdout
        self.assertEqual(texts(), texts())
        self.assertEqual(texts(), texts("--seed", "-1", "--engine-seed", "0"))
        self.assertNotEqual(texts(), texts("--engine-seed", "1"))
        self.assertEqual(texts("--seed", "5"), texts("--seed", "5", "--engine-seed", "1"))
        self.assertEqual(texts("--seed", "-5"), texts("--seed", "-5", "--engine-seed", "-1"))
        self.assertEqual(len({texts("--seed", seed) for seed in ("5", "-5", "-2", str(-2 ** 63), str(2 ** 63 - 1))}), 5)


@unittest.skipIf(SANITIZED, "sanitizers reserve terabytes of addresses")
class Ulimit(CliTest):
    def limited(self, kind, mebibytes, *args):
        limit = (mebibytes << 20, resource.RLIM_INFINITY)
        return run(*args, preexec_fn=lambda: resource.setrlimit(kind, limit))

    def test_the_cache_takes_no_more_than_the_process_may_have(self):
        whole = run("generate", MODEL, "-p", "Once upon a time", "-q", *SMALL).stdout
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
            for mebibytes in (400, 1000):
                result = self.limited(kind, mebibytes, "generate", MODEL, "-p", "Once upon a time", "-q", "--num-threads", "2", *SMALL[2:])
                self.assertEqual((result.returncode, result.stdout), (0, whole), result.stderr)

    def test_the_limit_that_bites_is_named(self):
        few = ["--num-threads", "1"]
        for kind, flag in ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")):
            result = self.limited(kind, 400, "info", MODEL, *few, "--kv-cache-memory", "1G")
            self.assert_one_sentence(result, f"are free (ulimit {flag}); lower num_kvcache_blocks or kv_cache_memory")
            self.assert_one_sentence(self.limited(kind, 80, "info", MODEL, *few), f"are free (ulimit {flag}); use less")
        large = self.path("large")
        shutil.copytree(MODEL, large)
        os.truncate(large / "model.safetensors", 1 << 30)
        self.assert_one_sentence(self.limited(resource.RLIMIT_AS, 400, "info", large, *few), "Cannot allocate memory (ulimit -v 409600)")
        threads = self.limited(resource.RLIMIT_DATA, 24, "info", MODEL, "--num-threads", "64")
        self.assert_one_sentence(threads, "(ulimit -d 24576)): use fewer threads or raise the limit")


class Generate(CliTest):
    def test_prompts_are_answered_in_order(self):
        result = run("generate", MODEL, "-p", "Once upon a time", "-p", "The dog", *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertLess(result.stdout.index("Once upon a time"), result.stdout.index("The dog"))
        self.assertNotIn("\x1b", result.stdout)

    def test_quiet_says_nothing_on_stderr(self):
        self.assertEqual(run("generate", MODEL, "-q", "-p", "Hello", *SMALL).stderr, "")

    def test_progress_counts_the_requests_of_a_file(self):
        line = '{"prompt": "Hi"}'
        speeds = r"\[\d\d:\d\d, prefill \d+ tok/s, decode \d+ tok/s\]\n$"
        padding = " " * 100000  # more than is read at once
        for text, total in ((line, 1), (f"{line}\n\n \t\r\n{line}\r\n\n", 2), (f"{padding}{line}{padding}\n{padding}\n  {line}", 2),
                            (f"{line}\nbad\n{line}\n", 3)):
            source = self.path("in.jsonl", text)
            result = run_watched("generate", MODEL, "--input", source, *SMALL)
            self.assertRegex(result.stderr, rf"(?m)^Generating {total}/{total} {speeds}")
            result = run_watched("generate", MODEL, "--input", "-", *SMALL, stdin=text)
            self.assertRegex(result.stderr, rf"(?m)^Generating {total} done {speeds}")
        with open(source, "rb") as requests:  # from where it stands, and without moving it
            os.lseek(requests.fileno(), len(line) + 1, os.SEEK_SET)
            result = run_watched("generate", MODEL, "--input", "-", *SMALL, stdin=requests)
        self.assertIn("Generating 2/2 ", result.stderr)
        self.assertEqual(len(lines(result.stdout)), 2)

    def test_progress_is_for_terminals_and_where_there_was_work(self):
        prompts = ["-p", "", "-p", "The dog", "-p", "Once", *SMALL]
        for command in (["generate", MODEL, *prompts], ["bench", "throughput", MODEL, "--num-prompts", "2", "--input-len", "8", "--output-len", "300"]):
            self.assertNotIn("/", run(*command).stderr)
        self.assertRegex(run_watched("generate", MODEL, *prompts).stderr, r"(?m)^Generating 3/3 \[")
        for flags in ([], ["--json"]):
            refused = run_watched("generate", MODEL, "-p", "", "-p", "", *flags)
            self.assertEqual(refused.returncode, 3)
            self.assertRegex(refused.stderr, r"^(nanovllm: prompt \d: .*\n){2}$")

    def test_the_last_line_of_progress_has_the_speeds_of_the_whole_run(self):
        request = '{"prompt": "Once upon a time", "sampling_params": {"max_tokens": %d, "ignore_eos": true}}\n'
        source, trace = self.path("in.jsonl", request % 40 * 7 + request % 80), self.path("trace.json")  # one is alone at the end
        for flags in ([], ["--max-num-batched-tokens", "9"]):  # with steps that both prefill and decode
            result = run_watched("generate", MODEL, "--input", source, "--trace", trace, *flags)
            shown = re.findall(r"Generating 8/8 \[\d\d:\d\d, prefill (\d+) tok/s, decode (\d+) tok/s\]\n", result.stderr)[-1]
            steps = [event for event in json.loads(trace.read_text()) if event.get("name") == "step"]
            for speed, kind in zip(shown, ("prefill_tokens", "decode_tokens")):
                such = [step for step in steps if step["args"][kind] > 0]
                average = sum(step["args"][kind] for step in such) / sum(step["dur"] for step in such) * 1e6
                self.assertAlmostEqual(int(speed), average, delta=1 + 0.02 * average, msg=kind)

    def test_json_lines_carry_the_documented_fields(self):
        source = self.path("in.jsonl", '{"prompt": "Once upon a time", "sampling_params": {"logprobs": 2, "prompt_logprobs": 1}}\n'
                           '\n{"prompt_token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 3, "ignore_eos": true}}\n')
        target = self.path("out.jsonl")
        result = run("generate", MODEL, "--input", source, "--output", target, *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "")
        by_index = {line["index"]: line for line in lines(target.read_text())}
        self.assertEqual(sorted(by_index), [0, 1])
        for line in by_index.values():
            for field in ("text", "token_ids", "finish_reason", "num_cached_tokens"):
                self.assertIn(field, line)
        self.assertEqual(len(by_index[1]["token_ids"]), 3)
        self.assertEqual(by_index[1]["finish_reason"], "length")
        first = by_index[0]
        self.assertEqual(len(first["logprobs"]), len(first["token_ids"]))
        for position, token in zip(first["logprobs"], first["token_ids"]):
            self.assertIn(str(token), position)
            self.assertEqual(position[str(token)]["rank"], 1)  # greedy
            self.assertEqual(list(position[str(token)]), ["logprob", "rank", "decoded_token"])
            self.assertEqual(max(entry["logprob"] for entry in position.values()), position[str(token)]["logprob"])
        self.assertIsNone(first["prompt_logprobs"][0])
        self.assertTrue(all(value["logprob"] <= 0 and value["rank"] >= 1 for position in first["prompt_logprobs"][1:] for value in position.values()))

    def test_a_prompt_in_brackets_is_one_prompt(self):
        texts = ["[hello, world]", "a", "[]"]
        result = run("generate", MODEL, "-q", "-p", *texts[:2], "-p", texts[2], *SMALL)
        for text in texts:
            self.assertIn(text, result.stdout)

    def test_a_bad_request_is_refused_and_the_others_go_on(self):
        bad = ['{"prompt": 5}', 'not json', '[]', '{}', '{"prompt": "x", "colour": 1}', '{"prompt": ""}', '{"prompt_token_ids": []}',
               '{"prompt_token_ids": [99999999]}', '{"prompt_token_ids": [-1]}', '{"prompt": "x", "sampling_params": {"temperature": -1}}',
               '{"prompt": "x", "sampling_params": {"top_p": 0}}', '{"prompt": "x", "sampling_params": {"tempature": 1}}',
               '{"prompt": "x", "sampling_params": {"max_tokens": 0}}', '{"prompt": "x", "sampling_params": {"max_tokens": 1e99}}',
               '{"prompt": "x", "sampling_params": {"logit_bias": {"12abc": 1}}}', "[" * 500000 + "]" * 500000,
               '{"prompt": %s}' % ("[" * 500000 + "]" * 500000), '{"prompt": "x", "prompt_token_ids": [1]}', '{"prompt": "%s"}' % ("word " * 3000)]
        source = self.path("in.jsonl", "\n".join(['{"prompt": "Good"}'] + bad + ['{"prompt": "Also good"}']) + "\n")
        result = run("generate", MODEL, "--input", source, "-q", *SMALL)
        self.assertEqual(result.returncode, 3, result.stderr)
        results = lines(result.stdout)
        self.assertEqual(sorted(r["index"] for r in results), list(range(len(bad) + 2)))
        good = [r["index"] for r in results if "text" in r]
        self.assertEqual(sorted(good), [0, len(bad) + 1])
        self.assertTrue(all(r["error"] for r in results if "error" in r))
        self.assertEqual(len(result.stderr.splitlines()), len(bad))
        self.assertIn("in.jsonl:3", result.stderr)
        self.assertLess(max(map(len, result.stderr.splitlines())), 450)

    def test_greedy_output_does_not_depend_on_batch_mates_or_threads(self):
        texts = ["Once upon a time there was", "The king said", "A small bird", "Tom went to the"]
        alone = [lines(run("generate", MODEL, "--json", "-q", "-p", t, *SMALL).stdout)[0]["token_ids"] for t in texts]
        for extra in ([], ["--num-threads", "1"], ["--num-threads", "3"], ["--max-num-batched-tokens", "5"],
                      ["--no-enable-prefix-caching"], ["--max-num-seqs", "2"], ["--kvcache-block-size", "16"]):
            flags = [arg for t in texts for arg in ("-p", t)]
            together = lines(run("generate", MODEL, "--json", "-q", *flags, *SMALL, *extra).stdout)
            self.assertEqual([r["token_ids"] for r in sorted(together, key=lambda r: r["index"])], alone, extra)

    def test_drafts_change_no_token(self):
        flags = ["--json", "-q", "-p", "The king said", "-p", "The king said", "--temperature", "0.8", "--seed", "1",
                 "--max-tokens", "40", "--ignore-eos", "--max-model-len", "128", "--max-num-seqs", "1", "--logprobs", "1", "--num-threads", "1"]
        plain = run("generate", MODEL, *flags)
        # The second text stands in the output of the first. A busy machine's clock may say that drafts don't pay.
        for _ in range(20):
            drafted = run("generate", MODEL, *flags, "--log-steps", "--speculative-config", '{"method": "suffix"}')
            self.assertEqual([(r["text"], r["token_ids"], r["logprobs"]) for r in lines(drafted.stdout)],
                             [(r["text"], r["token_ids"], r["logprobs"]) for r in lines(plain.stdout)])
            accepted = [int(count) for count in re.findall(r"; drafts: (\d+) of \d+ tokens accepted", drafted.stderr)]
            if sum(accepted) > 5:
                break
        self.assertGreater(sum(accepted), 5, drafted.stderr)

    LITTLE = ["--max-model-len", "512", "--max-num-seqs", "16", "--kv-cache-memory", "32M"]

    def test_a_benchmark_replays_outputs_that_the_model_would_not_give(self):
        path = self.path("replay.jsonl")
        text = [40, 41, 42, 43, 44, 45, 46, 47] * 8
        requests = [{"prompt": "Once upon a time", "token_ids": text, "category": "songs"},
                    {"prompt_token_ids": [5, 6, 7], "token_ids": text[1:30]}]
        path.write_text("".join(json.dumps(request) + "\n" for request in requests))
        suffix = ["--speculative-config", '{"method": "suffix"}']
        for command, flags in (("throughput", ["--num-prompts", "5"]), ("latency", ["--batch-size", "3"])):
            for drafts in ([], suffix):
                result = run("bench", command, MODEL, "--json", "-q", "--replay", path, *flags, *drafts, *self.LITTLE)
                self.assertEqual(result.returncode, 0, result.stderr)
                line = lines(result.stdout)[0]
                count = {"throughput": 3 * 64 + 2 * 29, "latency": 2 * 64 + 29}[command]
                self.assertEqual((line["output_tokens"], line["replay"]), (count, str(path)))
                if drafts:  # the second eight tokens and all behind them are copies
                    self.assertGreater(line["accepted_tokens"], 0.3 * count)
                    self.assertGreater(line["decode_tokens_a_step"], 1.5)
        good = '{"prompt": "a", "token_ids": [1]}\n'
        for broken, words in ((good + '\n{"prompt": "b", "token_ids": [9999]}', f"{path}:3: the output has the id 9999, but the model knows 0 to 4098"),
                              ('{"prompt_token_ids": [9999], "token_ids": [1]}', f"{path}:1: the prompt has the id 9999"), ('{"prompt": "a", "token_ids": []}', f"{path}:1: "),
                              ('{"prompt": "a"}', "token_ids"), ('{"token_ids": [1]}', "prompt_token_ids"), (good + "{", "not valid JSON: parse error at line 2"),
                              ("[]", f"{path}:1: expected a JSON object"), ("", "has no lines"), (None, "is a folder"), ('{"prompt": "", "token_ids": [1]}', f"{path}:1: the prompt has no tokens"),
                              (good + '{"prompt": "a", "token_ids": [2]}', f"{path}:2: the prompt is that of an earlier line, but the output is another")):
            if broken is not None:
                path.write_text(broken)
            result = run("bench", "latency", MODEL, "-q", "--replay", path if broken is not None else path.parent, *self.LITTLE)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(words, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn("--replay", run("bench", "latency", MODEL, "--replay", path, "--input-len", "4").stderr)

    def test_synthetic_acceptance_is_for_benchmarks_alone(self):
        spec = ["--speculative-config", '{"method": "suffix", "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3}']
        for command in (["generate", MODEL, "-p", "Hi"], ["serve", MODEL, "--port", "0"]):
            result = run(*command, *spec, *self.LITTLE)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("is for nanovllm bench latency and bench throughput alone", result.stderr)
        of_model = ["--speculative-config", json.dumps({"method": "draft_model", "model": str(MODEL), "num_speculative_tokens": 4,
                                                        "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3})]
        replay = self.path("replay.jsonl")
        replay.write_text('{"prompt": "a", "token_ids": [1]}')
        self.assertIn("leave one of them out", run("bench", "latency", MODEL, "-q", "--replay", replay, *spec, *self.LITTLE).stderr)
        for drafts in (spec, of_model):
            result = run("bench", "latency", MODEL, "-q", "--json", "--input-len", "40", "--output-len", "40", *drafts, *self.LITTLE)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_model_drafts_for_itself_and_info_tells_what_it_takes(self):
        drafts = ["--speculative-config", json.dumps({"method": "draft_model", "model": str(MODEL), "num_speculative_tokens": 3})]
        flags = ["--json", "-q", "-p", "The king said", "--seed", "1", "--max-tokens", "80", "--max-model-len", "128"]
        plain = run("generate", MODEL, *flags)
        drafted = run("generate", MODEL, *flags, *drafts)
        self.assertEqual(drafted.returncode, 0, drafted.stderr)
        self.assertEqual(lines(drafted.stdout)[0]["token_ids"], lines(plain.stdout)[0]["token_ids"])
        facts = [json.loads(run("info", MODEL, "--json", *extra).stdout) for extra in (drafts, [])]
        self.assertEqual(facts[0]["kv_bytes_per_token"], 2 * facts[1]["kv_bytes_per_token"])
        self.assertIn(f"the draft model {MODEL} (", facts[0]["kv_groups"][-1])
        self.assertIn(f"the draft model {MODEL} (", run("info", MODEL, *drafts).stdout)

    def test_ranks_together_write_what_one_does(self):
        args = ["generate", MODEL, "--json", "-q", "-p", "Once upon a time there was", "--device", "cpu", "--dtype", "float32"]
        alone = run(*args, *SMALL)
        together = run(*args, *SMALL, "--tensor-parallel-size", "2")
        self.assertEqual(together.returncode, 0, together.stderr)
        self.assertEqual(lines(together.stdout)[0]["text"], lines(alone.stdout)[0]["text"])

    def test_heads_that_ranks_cannot_share_are_refused_in_one_line(self):
        result = run("generate", MODEL, "-p", "Hi", "--device", "cpu", "--tensor-parallel-size", "3")
        self.assertEqual(result.returncode, 1)
        self.assertIn("the 8 attention heads can't be shared by tensor_parallel_size 3", result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_plain_output_says_how_many_texts_were_cut_off(self):
        said = "nanovllm: 2 of 2 texts reached --max-tokens or --max-model-len and were cut off\n"
        prompts = ["-p", "Once upon a time", "-p", "The dog", "-p", ""]
        result = run("generate", MODEL, *prompts, "--ignore-eos", *SMALL)
        self.assertEqual(result.returncode, 3)  # the empty prompt
        self.assertIn(said, result.stderr)
        self.assertIn("nanovllm: 3 of 3 texts", run("generate", MODEL, "-p", "The dog", "-n", "3", "--max-tokens", "2").stderr)
        short = run("generate", MODEL, "-p", "The dog", "--max-model-len", "12", "--ignore-eos", "--max-tokens", "100")
        self.assertIn("nanovllm: 1 of 1 text reached --max-tokens or --max-model-len and was cut off\n", short.stderr)
        for flags in (["--stop", "a"], ["--json"], ["-q"]):
            result = run("generate", MODEL, "-p", "Once upon a time", "--temperature", "0", "--max-tokens", "40", *flags)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("cut off", result.stderr)

    def test_answers_that_the_engine_aborts_are_told_and_counted(self):
        broken = self.model_without_logits()
        reason = "the model's logits leave no token to draw"
        result = run("generate", broken, "-p", "a", "-p", "b", *SMALL)
        self.assertEqual(result.returncode, 3, result.stderr)
        for number in (1, 2):
            self.assertIn(f"nanovllm: prompt {number}: aborted: {reason}\n", result.stderr)
        source = self.path("in.jsonl", '\n{"prompt": "a"}\n')
        result = run("generate", broken, "--input", source, *SMALL)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn(f"nanovllm: {source}:2: aborted: {reason}\n", result.stderr)
        self.assertEqual(lines(result.stdout)[0]["finish_reason"], "abort")
        for command in ("latency", "throughput"):
            bench = run("bench", command, broken, "-q", "--input-len", "8", "--output-len", "4")
            self.assert_one_sentence(bench, f"aborted a request: {reason}")
            self.assertEqual(bench.stdout, "")
        for status, args, text in ((1, ["-m", "Hi"], None), (3, [], "Hi\n")):
            chat = run("chat", broken, *args, stdin=text)
            self.assertEqual(chat.returncode, status, chat.stderr)
            self.assertIn(f"aborted: {reason}]", chat.stderr)

    def test_several_biases_hold_together(self):
        def first_token(*flags):
            result = run("generate", MODEL, "--json", "-q", "-p", "Once upon a time", *SMALL, *flags)
            return lines(result.stdout)[0]["token_ids"][0]
        first = first_token()
        second = first_token("--logit-bias", f"{first}:-100")
        self.assertNotEqual(first, second)
        for flags in (["--logit-bias", f"{first}:-100,{second}:-100"],
                      ["--logit-bias", f"{first}:-100", "--logit-bias", f"{second}:-100"]):
            self.assertNotIn(first_token(*flags), (first, second))

    def test_stop_text_ends_the_output(self):
        whole = lines(run("generate", MODEL, "--json", "-q", "-p", "Once upon a time", *SMALL).stdout)[0]["text"]
        word = whole.split()[2]
        cut = lines(run("generate", MODEL, "--json", "-q", "-p", "Once upon a time", "--stop", word, *SMALL).stdout)[0]
        self.assertEqual((cut["finish_reason"], cut["stop_reason"]), ("stop", word))
        self.assertEqual(cut["text"], whole[: whole.index(word)])

    def test_stop_and_bad_words_know_line_breaks_and_tabs(self):
        story = lines(run("generate", MODEL, "--json", "-q", "-p", "Once upon a time", "--stop", r"\n", *SMALL[:2], "--temperature", "0",
                          "--max-tokens", "100").stdout)[0]
        self.assertEqual((story["finish_reason"], story["stop_reason"]), ("stop", "\n"))
        texts = {r"a\tb": "a\tb", r"\\n": r"\n", r"\boxed": r"\boxed", "a\\": "a\\", r"\\\n": "\\\n", "b\n": "b\n"}
        for flag in ("--stop", "--bad-words"):
            given = [word for text in texts for word in (flag, text)]
            shown = run("chat", MODEL, *given, stdin="/params\n").stdout
            self.assertIn(json.dumps(list(texts.values()), separators=(",", ":")), shown)

    def test_bad_words_never_appear(self):
        def texts(*flags, **params):
            request = {"prompt": "Once upon a time", "sampling_params": params}
            result = run("generate", MODEL, "-q", "--input", "-", *flags, *SMALL[:2], "--max-tokens", "40", "--seed", "3",
                         "--temperature", "1", stdin=(json.dumps(request) + "\n") * 8)
            self.assertEqual(result.returncode, 0, result.stderr)
            return {line["text"] for line in lines(result.stdout)}
        self.assertTrue(any("She" in text for text in texts()))
        for banned in (["--bad-words", "She"], ["--bad-words", " She"]):
            self.assertFalse(any("She" in text for text in texts(*banned)), banned)
        self.assertFalse(any("She" in text for text in texts("--bad-words", "her", bad_words=["She"])))
        # Of several tokens: the first is no offence.
        whole = texts()
        pair = next(text for text in whole if ". She" in text)
        self.assertTrue(pair)
        without = texts(bad_words=[". She"])
        self.assertFalse(any(". She" in text for text in without))
        self.assertTrue(any("." in text for text in without))
        empty = run("generate", MODEL, "-p", "a", "--bad-words", "")
        self.assert_one_sentence(empty, "bad_words cannot contain an empty string.", status=2)

    def test_only_allowed_tokens_are_drawn(self):
        def ids(*flags, **params):
            request = {"prompt": "Once upon a time", "sampling_params": params}
            result = run("generate", MODEL, "-q", "--input", "-", *flags, *SMALL[:2], "--max-tokens", "40", "--seed", "3",
                         "--temperature", "1", "--ignore-eos", stdin=json.dumps(request))
            self.assertEqual(result.returncode, 0, result.stderr)
            return set(lines(result.stdout)[0]["token_ids"])
        self.assertEqual(ids("--allowed-token-ids", "261,13"), {261, 13})
        self.assertEqual(ids("--allowed-token-ids", "7", allowed_token_ids=[300]), {300})
        self.assertGreater(len(ids("--allowed-token-ids", "7", allowed_token_ids=None)), 2)
        outside = run("generate", MODEL, "-q", "-p", "a", "--allowed-token-ids", "4098", "--allowed-token-ids", "4099")
        self.assert_one_sentence(outside, "token_id(s) [4099] in allowed_token_ids contain out-of-vocab token ids", status=3)

    def test_completions_are_numbered_in_plain_output(self):
        args = ("generate", MODEL, "-q", "-p", "Once", "-p", "The", "--seed", "5", "--temperature", "1", "--max-tokens", "3")
        several = run(*args, "-n", "3").stdout
        self.assertEqual(re.findall(r"(?m)^\[(\d)/3\] (Once|The)", several), [(i, text) for text in ("Once", "The") for i in "123"])
        self.assertNotIn("[1/1]", run(*args).stdout)

    def test_null_asks_for_as_many_tokens_as_fit(self):
        request = {"prompt": "Once", "sampling_params": {"max_tokens": None, "ignore_eos": True}}
        for flags, room in ((["--max-model-len", "64"], 64), (["--num-kvcache-blocks", "2", "--kvcache-block-size", "16"], 33)):
            line = lines(run("generate", MODEL, "--input", "-", "-q", *flags, stdin=json.dumps(request)).stdout)[0]
            self.assertEqual(line["finish_reason"], "length")
            self.assertEqual(line["num_prompt_tokens"] + len(line["token_ids"]), room)

    def test_the_reason_of_a_stop_token_is_its_id(self):
        args = ("generate", MODEL, "--json", "-q", "-p", "Once upon a time", *SMALL)
        token_id = lines(run(*args).stdout)[0]["token_ids"][2]
        cut = lines(run(*args, "--stop-token-ids", str(token_id)).stdout)[0]
        self.assertEqual((cut["finish_reason"], cut["stop_reason"]), ("stop", token_id))

    def test_n_gives_different_samples_and_a_seed_repeats_them(self):
        args = ("generate", MODEL, "--json", "-q", "-p", "Once upon a time", "-n", "3", "--seed", "5", "--temperature", "1",
                "--max-tokens", "12")
        first, second = lines(run(*args).stdout)[0], lines(run(*args).stdout)[0]
        self.assertEqual(first, second)
        self.assertEqual(len({tuple(o["token_ids"]) for o in first["outputs"]}), 3)

    def test_result_lines_of_several_completions_are_as_documented(self):
        line = lines(run("generate", MODEL, "--json", "-q", "-p", "Once", "-n", "2", "--temperature", "1", "--logprobs", "1",
                         "--max-tokens", "4", "--max-model-len", "512").stdout)[0]
        self.assertEqual(list(line), ["index", "outputs", "num_prompt_tokens", "num_cached_tokens"])
        fields = ["index", "text", "token_ids", "finish_reason", "logprobs"]
        self.assertEqual([[name for name in output if name != "stop_reason"] for output in line["outputs"]], [fields] * 2)
        self.assertEqual([output["index"] for output in line["outputs"]], [0, 1])
        text = run("generate", "--help").stdout
        for name in (*line, *fields, "stop_reason"):
            self.assertIn(name, text)

    def test_request_lines_take_chats_and_give_their_ids_back(self):
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Tell me a story."}]}]
        requests = [{"custom_id": "a\u00e4\"1", "messages": messages}, {"prompt": "Once", "custom_id": ""}, {"messages": messages},
                    {"messages": messages, "custom_id": "two", "sampling_params": {"n": 2, "temperature": 1, "top_k": 1}}]
        source = self.path("in.jsonl", "".join(json.dumps(request) + "\n" for request in requests))
        result = run("generate", MODEL, "-q", "--input", source, *SMALL)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        first, prompt, other, both = sorted(lines(result.stdout), key=lambda line: line["index"])
        self.assertEqual(list(first)[:3], ["index", "custom_id", "text"])
        self.assertEqual([line.get("custom_id") for line in (first, prompt, other, both)], ['a\u00e4"1', "", None, "two"])
        self.assertEqual(first["token_ids"], other["token_ids"])
        self.assertEqual([output["text"] for output in both["outputs"]], [first["text"]] * 2)
        said = run("chat", MODEL, "--system", "Be kind.", "-m", "Tell me a story.", *SMALL)
        self.assertEqual(first["text"] + "\n", said.stdout)
        text = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"
        ids = run("tokenize", MODEL, "--no-special", text)
        self.assertEqual(first["num_prompt_tokens"], len(json.loads(ids.stdout)))

    def test_chats_of_request_lines_are_what_the_template_makes_of_them(self):
        template = self.path("t.jinja", "{{ raise_exception([tools | tojson, enable_thinking, messages[0].content, eos_token] | join(' / ')) }}")
        request = {"custom_id": "x", "messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": {"name": "f", "b": 1, "a": 2}}],
                   "chat_template_kwargs": {"enable_thinking": False}}
        result = run("generate", MODEL, "-q", "--input", "-", "--chat-template", template, stdin=json.dumps(request) + "\n")
        self.assertEqual(result.returncode, 3)
        line = lines(result.stdout)[0]
        self.assertEqual(list(line), ["index", "custom_id", "error"])
        self.assertIn('[{"type": "function", "function": {"name": "f", "b": 1, "a": 2}}] / False / Hi / <|im_end|>', line["error"])
        self.assertIn("standard input:1: ", result.stderr)
        model = self.path("model")
        shutil.copytree(MODEL, model)
        config = json.loads((model / "tokenizer_config.json").read_text())
        del config["chat_template"]
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        both = json.dumps({"messages": request["messages"]}) + '\n{"prompt": "Hi"}\n'
        result = run("generate", model, "-q", "--input", "-", *SMALL, stdin=both)
        self.assertEqual(result.returncode, 3)
        self.assertRegex(lines(result.stdout)[0]["error"], "no chat template .*; give one with --chat-template")
        self.assertIn("text", lines(result.stdout)[1])
        # The template is looked for once: one that comes later is none of this run's.
        process = subprocess.Popen([BINARY, "generate", model, "-q", "--input", "-", *SMALL], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        errors = []
        for _ in range(2):
            process.stdin.write(json.dumps({"messages": request["messages"]}) + "\n")
            process.stdin.flush()
            errors.append(json.loads(process.stdout.readline())["error"])
            shutil.copy(pathlib.Path(MODEL) / "tokenizer_config.json", model)
        process.communicate(timeout=300)
        self.assertIn("no chat template", errors[0])
        self.assertEqual(errors[0], errors[1])
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        result = run("generate", model, "--input", "-", "--chat-template", "/nonexistent", stdin=both)
        self.assert_one_sentence(result, "/nonexistent")

    def test_seed_minus_one_is_no_seed(self):
        source = self.path("in.jsonl", '{"prompt": "Once upon a time", "sampling_params": {"seed": -1}}\n')
        both = ("-q", "--json", "--temperature", "1", "--max-tokens", "12", "--max-model-len", "512", "--engine-seed", "3")
        prompt = ("generate", MODEL, *both, "-p", "Once upon a time")
        without = lines(run(*prompt).stdout)[0]
        self.assertEqual(lines(run(*prompt, "--seed", "-1").stdout)[0], without)
        self.assertEqual(lines(run("generate", MODEL, *both, "--input", source, "--seed", "5").stdout)[0], without)
        self.assertNotEqual(lines(run(*prompt, "--seed", "5").stdout)[0], without)

    def test_missing_and_broken_model_folders_are_told(self):
        result = run("generate", "/nonexistent/model", "-p", "x")
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nonexistent/model", result.stderr)
        broken = self.path("broken")
        shutil.copytree(MODEL, broken)
        weights = broken / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        self.assert_one_sentence(run("generate", broken, "-p", "x"), "model.safetensors")
        weights.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
        self.assert_one_sentence(run("generate", broken, "-p", "x"), "model.safetensors")
        weights.unlink()
        self.assert_one_sentence(run("generate", broken, "-p", "x"), "safetensors")
        shutil.copy(pathlib.Path(MODEL) / "model.safetensors", weights)
        (broken / "config.json").write_text("{broken")
        self.assert_one_sentence(run("generate", broken, "-p", "x"), "config.json")
        config = json.loads((pathlib.Path(MODEL) / "config.json").read_text())
        (broken / "config.json").write_text(json.dumps(config | {"architectures": ["UnheardOfModel"]}))
        self.assert_one_sentence(run("generate", broken, "-p", "x"), "UnheardOfModel")

    def test_a_model_that_fails_to_load_leaves_older_results(self):
        results, trace = self.path("results.jsonl", "kept"), self.path("trace.json", "kept")
        run("generate", "/nonexistent/model", "-p", "x", "--output", results, "--trace", trace)
        broken = self.path("broken")
        shutil.copytree(MODEL, broken)
        os.truncate(broken / "model.safetensors", 4096)
        result = run("generate", broken, "-p", "x", "--output", results, "--trace", trace)
        self.assert_one_sentence(result, "model.safetensors")
        self.assertEqual((results.read_text(), trace.read_text()), ("kept", "kept"))
        other, link = self.path("none.jsonl"), self.path("link.jsonl")
        link.symlink_to(other)
        for output in (other, link):
            run("generate", broken, "-p", "x", "--output", output)
            self.assertFalse(other.exists())
        self.assertTrue(link.is_symlink())
        other.touch()  # an empty one that was there stays
        run("generate", broken, "-p", "x", "--output", other)
        self.assertTrue(other.exists())
        nothing = self.path("nothing.jsonl")
        self.assertEqual(run("generate", MODEL, "-q", "--input", self.path("in.jsonl", ""), "--output", nothing, *SMALL).returncode, 0)
        self.assertEqual(nothing.read_text(), "")  # all the results of no request

    def test_log_probabilities_are_shown_in_plain_output_too(self):
        result = run("generate", MODEL, "-q", "-p", "Once upon a time", "--logprobs", "2", "--prompt-logprobs", "0", *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        found = json.loads(run("generate", MODEL, "-q", "--json", "-p", "Once upon a time", "--logprobs", "2", *SMALL).stdout)
        first = {float(f"{token['logprob']:.4f}") for token in found["logprobs"][0].values()}
        self.assertIn("prompt token", result.stdout)
        table = result.stdout[result.stdout.rindex("  token "):].splitlines()
        self.assertEqual(len(table) - 2, len(found["token_ids"]))  # a header, and an empty line
        self.assertTrue(all(f"{value:.4f}" in table[1] for value in first), table)

    def test_the_smallest_top_p_is_greedy(self):
        args = ["generate", MODEL, "-q", "--json", "-p", "Once upon a time", "--max-tokens", "8", "--max-model-len", "512"]
        greedy = run(*args, "--temperature", "0")
        smallest = run(*args, "--temperature", "1", "--top-p", "1e-300")
        self.assertEqual(smallest.returncode, 0, smallest.stderr)
        self.assertEqual(smallest.stdout, greedy.stdout)

    def test_trace_is_valid_json_with_steps_and_requests(self):
        trace = self.path("trace.json")
        result = run("generate", MODEL, "-q", "-p", "Once", "-p", "The", "--trace", trace, *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        events = json.loads(trace.read_text())
        events = events["traceEvents"] if isinstance(events, dict) else events
        self.assertGreaterEqual(len(events), 8)
        self.assertTrue({"X", "C"} <= {event["ph"] for event in events})

    def test_log_steps_knows_a_prompt_of_one_token(self):
        steps = run("generate", MODEL, "-q", "--log-steps", "-p", "The", *SMALL).stderr.splitlines()
        self.assertRegex(steps[0], r"^step 0: 1 prefill \(1 token\), 0 decode; blocks \d+/\d+; 0:0\+1$")
        self.assertRegex(steps[1], r"^step 1: 0 prefill \(0 tokens\), 1 decode; blocks \d+/\d+; \| 0$")

    def test_log_steps_shows_prefill_and_decode(self):
        result = run("generate", MODEL, "-q", "--log-steps", "-p", "Once upon a time", *SMALL)
        self.assertIn("prefill", result.stderr)
        self.assertIn("decode", result.stderr)

    def test_priorities_count_where_the_policy_looks_at_them(self):
        requests = "".join('{"prompt": "The", "sampling_params": {"priority": %d}}\n' % priority for priority in (1, 0, -2))
        flags = ["generate", MODEL, "-q", "--log-steps", "--max-num-seqs", "2", "--input", "-", *SMALL]
        result = run(*flags, "--scheduling-policy", "priority", stdin=requests)
        self.assertEqual(re.findall(r" (\d):0\+", result.stderr), ["2", "1", "0"], result.stderr)
        self.assert_one_sentence(run("generate", MODEL, "-p", "The", "--priority", "3", *SMALL),
                                 "Got priority 3 but Priority scheduling is not enabled", 3)
        self.assert_one_sentence(run("generate", MODEL, "-p", "The", "--scheduling-policy", "lifo", *SMALL),
                                 'scheduling_policy must be one of fcfs, priority, got "lifo"', 2)

    def test_preemption_changes_no_token(self):
        flags = [arg for i in range(6) for arg in ("-p", f"Story number {i}: once upon a time")]
        common = ["--json", "-q", *flags, "--temperature", "0", "--max-tokens", "60", "--ignore-eos", "--max-model-len", "128",
                  "--kvcache-block-size", "16"]
        roomy = run("generate", MODEL, *common)
        tight = run("generate", MODEL, *common, "--num-kvcache-blocks", "12")
        self.assertEqual(tight.returncode, 0, tight.stderr)
        key = lambda r: r["index"]
        self.assertEqual([r["token_ids"] for r in sorted(lines(roomy.stdout), key=key)],
                         [r["token_ids"] for r in sorted(lines(tight.stdout), key=key)])


if __name__ == "__main__":
    unittest.main()
