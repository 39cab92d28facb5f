"""Command lines as people type them who know vLLM's."""
import os
import re
import subprocess
import unittest

from cli_testing import BINARY, MODEL, SMALL, CliTest, lines, run

NOWHERE = "/nonexistent"  # what is said of it is said behind all that is said of options


class Options(CliTest):
    def facts(self, *flags):
        result = run("info", MODEL, "--json", "--device", "cpu", *flags)
        self.assertEqual(result.returncode, 0, (flags, result.stderr))
        return {name: value for name, value in lines(result.stdout)[0].items() if name != "load_seconds"}

    def first_line(self, *args):
        """Of what is wrong with a command line."""
        result = run(*args)
        self.assertEqual(result.returncode, 2, (args, result.stderr))
        return result.stderr.splitlines()[0]

    def test_underscores_in_names_are_dashes_and_in_values_what_they_are(self):
        self.assertEqual(self.facts("--max_model_len", "512"), self.facts("--max-model-len", "512"))
        self.assertEqual(self.facts("--max_model_len=512", "--enable_prefix_caching")["max_model_len"], 512)
        shown = run("generate", MODEL, "-q", "--json", "-p", "--max_model_len", "--bad_words", "a_b", "--stop=c_d", *SMALL)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn('got "b_float"', run("info", MODEL, "--dtype", "b_float").stderr)

    def test_k_is_a_thousand_and_capital_k_1024(self):
        for typed, count in (("1k", 1000), ("1K", 1024), ("1.5k", 1500), ("0.5K", 512), ("1000", 1000), ("auto", 2048), ("-1", 2048), ("2K", 2048)):
            self.assertEqual(self.facts("--max-model-len", typed)["max_model_len"], count, typed)
        for typed, count in (("8k", 8000), ("1m", 1000000), ("1M", 1048576)):
            self.assertEqual(self.first_line("info", MODEL, "--max-model-len", typed),
                             f"nanovllm: max_model_len is {count}, but {MODEL} was made for 2048 tokens, prompt and output together; ask for no more, or leave it out")
        for typed, tokens in (("8k", 8000), ("8K", 8192), ("1048576", 1048576), ("1M", 1 << 20)):
            self.assertEqual(run("info", MODEL, "--max-num-batched-tokens", typed).returncode, 0, (typed, tokens))
        for typed, what in (("2M", "max_num_batched_tokens must be between 1 and 1048576, got 2097152"), ("2m", "got 2000000"), ("1g", "got 1000000000"),
                            ("1G", "got 1073741824"), ("0k", "got 0")):
            self.assertIn(what, run("info", MODEL, "--max-num-batched-tokens", typed).stderr)
        for typed in ("2G", "8kk", "k", "8KB", "8 k", "-8k", "8x", "1e3k", "1e3", "auto"):
            self.assertEqual(self.first_line("info", NOWHERE, "--max-num-batched-tokens", typed),
                             f"nanovllm: --max-num-batched-tokens: must be an integer up to 2147483647, got {typed}")
        for typed, blocks in (("64M", 64), ("64MiB", 64), ("64m", 61), ("0.0625G", 64), ("67108864", 64), ("65536K", 64), ("65536k", 62)):
            self.assertEqual(self.facts("--kv-cache-memory", typed)["num_kvcache_blocks"], blocks, typed)
        self.assertIn("is not a size in bytes", self.first_line("info", NOWHERE, "--kv-cache-memory", "64x"))

    def test_names_of_vllm_are_ours(self):
        plain = self.facts()
        for theirs, ours in ((["-tp", "2"], ["--tensor-parallel-size", "2"]), (["-tp=2"], ["--tensor-parallel-size=2"]),
                             (["--block-size", "16"], ["--kvcache-block-size", "16"]),
                             (["--num-gpu-blocks-override", "9"], ["--num-kvcache-blocks", "9"]),
                             (["--kv-cache-memory-bytes=64m"], ["--kv-cache-memory", "64m"])):
            self.assertEqual(self.facts(*theirs), self.facts(*ours), theirs)
            self.assertNotEqual(self.facts(*theirs), plain, theirs)
        for flags, what in ((["-tp", "9"], "tensor_parallel_size must be between 1 and 8, got 9"), (["--gpu_memory_utilization", "2"], "gpu_memory_utilization"),
                            (["--device-memory-utilization", "2"], "gpu_memory_utilization must be in (0, 1], got 2")):
            self.assertIn(what, run("info", MODEL, *flags).stderr)
        self.assertEqual(self.facts("-ep", "--seed", "-3", "--no-enforce-eager", "--no-deterministic"), plain)
        self.assertIn("--engine-seed: must be an integer", self.first_line("serve", NOWHERE, "--seed", "x"))
        self.assertIn("--seed: must be an integer", self.first_line("generate", NOWHERE, "-p", "x", "--seed", "x"))
        self.assertIn("--data-parallel-size", self.first_line("serve", NOWHERE, "-dp", "65"))
        self.assertEqual(lines(run("info", "--model", MODEL, "--json").stdout)[0]["model"], MODEL)
        self.assertEqual(lines(run("info", "--json", f"--model={MODEL}").stdout)[0]["model"], MODEL)

    def test_half_is_taken_as_bfloat16_and_said_to_be(self):
        for typed in ("half", "float16"):
            result = run("info", MODEL, "--json", "--dtype", typed)
            self.assertEqual(lines(result.stdout)[0]["dtype"], "bfloat16", typed)
            self.assertEqual(result.stderr, f"nanovllm: --dtype {typed} is taken as bfloat16, as float16 checkpoints are\n")
        result = run("info", MODEL, "--json", "--dtype=float")
        self.assertEqual((lines(result.stdout)[0]["dtype"], result.stderr), ("float32", ""))
        self.assertEqual(run("generate", MODEL, "-q", "--dtype", "half", "-p", "a", *SMALL).stderr, "")

    def test_what_changes_nothing_is_ignored_in_one_line(self):
        flags = ["--disable-log-stats", "--enable_chunked_prefill", "--swap-space", "4", "--uvicorn-log-level=error", "--trust-remote-code",
                 "--async-scheduling", "-O3", "-cc", '{"level": 3}', "--compilation-config.level", "3", "--kv-cache-dtype", "auto",
                 "--pipeline-parallel-size", "1", "--load-format=safetensors", "--mamba-cache-mode", "align", "--mamba-block-size=64",
                 "--mamba-ssm-cache-dtype", "float32", "--mamba-cache-dtype", "auto"]
        result = run("info", MODEL, "--json", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "nanovllm: ignored, as they change nothing here: --disable-log-stats, --enable-chunked-prefill, --swap-space, "
                         "--uvicorn-log-level, --trust-remote-code, --async-scheduling, -O3, -cc, --compilation-config.level, --kv-cache-dtype, "
                         "--pipeline-parallel-size, --load-format, --mamba-cache-mode, --mamba-block-size, --mamba-ssm-cache-dtype, --mamba-cache-dtype\n")
        for words, what in ((["--kv-cache-dtype", "fp8"], "--kv-cache-dtype fp8"), (["-pp=2"], "-pp 2"), (["--mamba-ssm-cache-dtype", "bfloat16"], "--mamba-ssm-cache-dtype bfloat16"), (["--generation-config", "vllm"], "--generation-config vllm")):
            self.assertEqual(self.first_line("info", MODEL, *words), f"nanovllm: {what} is not supported yet; leave it out")
        for flag in ("chunked-prefill", "auto-tool-choice", "request-id-headers"):
            self.assertEqual(run("info", MODEL, f"--enable-{flag}=True").stderr, f"nanovllm: ignored, as they change nothing here: --enable-{flag}\n")
        for word in ("--no-enable-chunked-prefill", "--no_enable_auto_tool_choice", "--enable-chunked-prefill=false", "--no-async-scheduling",
                     "--enable-request-id-headers=False", "--no-language-model-only"):
            shown = word.replace("_", "-")
            self.assertEqual(self.first_line("info", MODEL, word), f"nanovllm: {shown} is not supported yet; leave it out")
        for word in ("--no-trust-remote-code", "--trust-remote-code=false", "--no-disable-log-stats", "--no-disable-custom-all-reduce"):
            self.assertEqual(run("info", MODEL, word).stderr, f"nanovllm: ignored, as they change nothing here: {word.split('=')[0]}\n")
        self.assertEqual(self.first_line("info", MODEL, "--swap-space", "--json"), "nanovllm: --swap-space needs a value")
        self.assertEqual(self.first_line("list", "--swap-space", "4"), "nanovllm: there is no option --swap-space; --help lists those there are")

    def test_vllms_names_of_two_letters_are_no_flag_with_its_value(self):
        texts = [line["text"] for line in lines(run("generate", MODEL, "--json", "-q", "-p", "a", *SMALL).stdout)]
        self.assertEqual(len(texts), 1)
        for words in (["-pp=1", "-p", "a"], ["-p", "a", "-pp", "1"], ["-pa", "-pp", "1"]):
            result = run("generate", MODEL, "--json", *words, *SMALL)
            self.assertEqual([line["text"] for line in lines(result.stdout)], texts, (words, result.stderr))
            self.assertIn("ignored, as they change nothing here: -pp\n", result.stderr)
        for words in (["-pp=2"], ["-pp", "2"]):
            self.assertEqual(self.first_line("generate", MODEL, *words, "-p", "a"), "nanovllm: -pp 2 is not supported yet; leave it out")
        pair = lines(run("generate", MODEL, "--json", "-q", "-ppp", *SMALL).stdout)  # of no such name
        self.assertEqual(pair, lines(run("generate", MODEL, "--json", "-q", "-p", "pp", *SMALL).stdout))

    def test_a_typo_is_told_alone_with_the_nearest_name(self):
        for typed, meant in (("--max-modle-len", "--max-model-len"), ("--max_model_lenn", "--max-model-len"), ("--maxmodellen", "--max-model-len"),
                             ("--max-model", "--max-model-len"), ("--gpu-memory-utilisation", "--gpu-memory-utilization"),
                             ("--enable-prefix-cachin", "--enable-prefix-caching"), ("--no-enable-prefix-cachng", "--no-enable-prefix-caching"),
                             ("--prot", "--port"), ("--hots", "--host"), ("--served-model-names", "--served-model-name"), ("--api-keys", "--api-key")):
            for words in ([typed, "8"], [f"{typed}=8"]):
                result = run("serve", MODEL, *words, "--max-num-seqs", "many", "--also-wrong")
                self.assertEqual((result.returncode, result.stderr), (2, f"nanovllm: there is no option {typed}; did you mean {meant}?\n"))
        for typed in ("--enable-lora", "--nothing-like-it", "-z", "--\x1b[31m"):
            shown = typed.replace("\x1b", "?")
            self.assertEqual(run("serve", MODEL, typed).stderr, f"nanovllm: there is no option {shown}; --help lists those there are\n")
        self.assertEqual(run("bench", "throughput", MODEL, "--num-promts", "3").stderr, "nanovllm: there is no option --num-promts; did you mean --num-prompts?\n")
        for words in (["--bogus", "--help"], ["--help", "--bogus"], ["-h", "--bogus", "3"]):
            self.assertEqual(run("serve", *words).returncode, 0)
        self.assertEqual(run("generate", "--bogus", "-p", "--help").returncode, 2)  # which is the prompt
        self.assertNotIn("secret", run("serve", MODEL, "--api-kye", "secret").stderr)
        path = self.path("flags.yaml", "max-modle-len: 8\n")
        self.assertEqual(run("serve", MODEL, "--config", path).stderr,
                         f"nanovllm: there is no option --max-modle-len; did you mean --max-model-len?; flags come from {path}, too\n")

    def test_options_of_several_values_leave_the_model_where_it_stands(self):
        plain = ["-q", "--json", "-p", "Once upon a time", *SMALL]
        banned = lines(run("generate", MODEL, "--stop-token-ids", "5", "6", "--stop", "girl", "boy", *plain).stdout)[0]
        self.assertEqual(banned, lines(run("generate", MODEL, *plain, "--stop-token-ids", "5,6", "--stop", "girl", "--stop", "boy").stdout)[0])
        self.assertEqual(banned["finish_reason"], "stop")
        for words in (["--stop", "girl", MODEL], ["--stop", "boy", "girl", MODEL], ["--stop-token-ids", "5", MODEL, "--stop", "girl"]):
            self.assertEqual(lines(run("generate", *words, *plain).stdout)[0]["text"], banned["text"], words)
        offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
        file = self.path("model.gguf", "")
        address = "https://huggingface.co/Owner/Model"
        names = [["--served-model-name", "a", model] for model in ("Owner/Model", "no.gguf", f"{address}/tree/main")]
        keys = [["--api-key", "secret", model, "--port", "0"] for model in (self.folder.name, file, address, "hf.co/Owner/Model")]
        for words in (*names, *keys, ["--api-key=secret", "Owner/Model"], ["--api-key", "secret", "one/two", "--served-model-name", "a", "Owner/Model"]):
            result = run("serve", *words, env=offline)
            self.assertEqual(result.returncode, 1, (words, result.stderr))
            self.assertRegex(result.stderr, f"Owner/Model|no.gguf|{file}|{self.folder.name}")
            self.assertNotIn("model is required", result.stderr)
        for other in ("secret two", "aB3/dE9xyz", "no.gguf", "https://example.com/a/b"):
            forgotten = run("serve", "--api-key", "secret one", other, env=offline)
            self.assertEqual((forgotten.returncode, forgotten.stderr),
                             (2, "nanovllm: model is required, and --api-key took what is behind it; MODEL goes before it\n"))


class ServeLog(CliTest):
    def test_the_log_says_what_was_ignored_with_the_time_and_once(self):
        words = ["--uvicorn-log-level", "info", "--disable-uvicorn-access-log", "--disable-log-requests", "--dtype", "half", "--max-model-len", "512"]
        address = self.path("socket")
        server = subprocess.Popen([BINARY, "serve", MODEL, "--uds", address, *words], stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        log = []
        while not log or " ready: " not in log[-1]:
            log.append(server.stderr.readline())
            self.assertNotEqual(log[-1], "", log)
        time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z nanovllm: "
        for line in (r"--dtype half is taken as bfloat16, as float16 checkpoints are\n",
                     r"ignored, as they change nothing here: --uvicorn-log-level, --disable-log-requests\n"):
            self.assertEqual(len([seen for seen in log if re.fullmatch(time + line, seen)]), 1, log)


if __name__ == "__main__":
    unittest.main()
