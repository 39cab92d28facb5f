"""info, tokenize and bench of the real binary."""
import json
import pathlib
import shutil
import unittest

from cli_testing import MODEL, CliTest, run

HYBRID = pathlib.Path(__file__).resolve().parent / "goldens" / "qwen3_5"


class Tools(CliTest):
    def test_info_counts_the_kv_cache(self):
        facts = json.loads(run("info", MODEL, "--json").stdout)
        config = json.loads((pathlib.Path(MODEL) / "config.json").read_text())
        expected = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 2  # bytes
        self.assertEqual(facts["kv_bytes_per_token"], expected)
        self.assertEqual(facts["kv_cache_bytes"], facts["num_kvcache_blocks"] * facts["kvcache_block_size"] * expected)
        self.assertEqual(run("info", MODEL).returncode, 0)

    def test_wrong_defaults_of_the_model_are_blamed_on_their_file(self):
        model = self.path("model")
        shutil.copytree(MODEL, model)
        file = model / "generation_config.json"
        for bad, message in (({"temperature": 2.5}, "temperature must be in [0, 2], got 2.5."), ({"temperature": 1e300}, "temperature must be in"),
                             ({"repetition_penalty": 1e300}, "repetition_penalty must be between"), ({"repetition_penalty": 1e-300}, "repetition_penalty"),
                             ({"top_k": -2}, '"top_k" is -2'), ({"min_p": 1.5}, '"min_p" is 1.5')):
            file.write_text(json.dumps(bad))
            self.assert_one_sentence(run("info", model), f"{file}: {message}" if "must" in message else message)
            self.assert_one_sentence(run("generate", model, "-q", "-p", "x", "--temperature", "0"), str(file))
        for good in ({"temperature": 2}, {"temperature": 0, "top_k": -1, "repetition_penalty": 1e38}):
            file.write_text(json.dumps(good))
            self.assertEqual(run("info", model).returncode, 0, good)

    def test_kv_cache_memory_bounds_the_cache(self):
        facts = json.loads(run("info", MODEL, "--json", "--kv-cache-memory", "64M").stdout)
        self.assertLessEqual(facts["kv_cache_bytes"], 64 << 20)
        self.assertGreater(facts["kv_cache_bytes"], 60 << 20)
        self.assertEqual(facts["full_length_requests"], 64 * 256 // facts["max_model_len"])
        # The last token of a request needs no room.
        for length, expected in ((257, 64), (258, 32)):
            facts = json.loads(run("info", MODEL, "--json", "--kv-cache-memory", "64M", "--max-model-len", str(length)).stdout)
            self.assertEqual(facts["full_length_requests"], expected)
        result = run("info", MODEL, "--kv-cache-memory", "1K")
        self.assertEqual(result.returncode, 2)
        self.assertIn("bytes", result.stderr)

    def test_states_bound_how_many_run_at_once(self):
        few = ["--device", "cpu", "--num-kvcache-blocks", "64", "--kvcache-block-size", "64"]
        info = lambda *flags: json.loads(run("info", HYBRID, "--json", *few, *flags).stdout)
        facts = info("--max-num-seqs", "1", "--no-enable-prefix-caching")
        self.assertEqual((facts["num_states"], facts["num_kept_states"], facts["full_length_requests"]), (1, 0, 1))
        self.assertEqual(facts["state_cache_bytes"], 2 * facts["state_slot_bytes"] + facts["state_log_bytes"])
        memory = ["--state-cache-memory", str(3 * facts["state_cache_bytes"])]
        facts = info(*memory, "--max-model-len", "65")
        self.assertEqual((facts["num_states"], facts["num_kept_states"], facts["full_length_requests"]), (3, 0, 3))
        facts = info(*memory, "--max-num-seqs", "1")
        self.assertEqual(facts["num_states"], 1)
        self.assertGreaterEqual(facts["num_kept_states"], 4)  # two sequences' at least
        shown = run("info", HYBRID, *few, *memory).stdout
        self.assertRegex(shown, r"states +3 sequences at once, each with 2 slots of \d+\.\d MiB and a log of \d+\.\d MiB; \d+\.\d MiB in all\n")
        self.assertIn("0 kept for prompts while so many run, more while fewer do", shown)
        self.assertNotIn("kept for prompts", run("info", HYBRID, *few, *memory, "--no-enable-prefix-caching").stdout)
        steps = run("generate", HYBRID, "-q", "--log-steps", *few, *memory, "--max-tokens", "2", "--input", "-", stdin='{"prompt_token_ids": [1, 2]}\n' * 4).stderr
        self.assertIn(", states 3/3;", steps)
        self.assertIn(", states 1/3;", steps)
        batch = ["bench", "latency", HYBRID, *few, *memory, "--batch-size", "4", "--input-len", "16", "--output-len", "17", "--num-iters", "1", "-q"]
        result = run(*batch)
        self.assertEqual(result.returncode, 2)
        self.assertIn("a batch of 4 needs 4 states of sequences at once and there are 3; ask for less, or raise --state-cache-memory", result.stderr)

    def test_a_model_that_ranks_cannot_share_says_which_part(self):
        self.assert_one_sentence(run("info", HYBRID.parent / "qwen3_5_moe", "--device", "cpu", "-tp", "2"),
                                 "the 1 key heads of recurrent layers can't be shared by tensor_parallel_size 2", 1)

    def test_tokenize_goes_both_ways(self):
        text = "Once upon a time, 小猫 🐈 said: naïve?"
        ids = json.loads(run("tokenize", MODEL, text).stdout)
        self.assertEqual(run("tokenize", MODEL, "--ids", " ".join(map(str, ids))).stdout, text + "\n")
        self.assertEqual(json.loads(run("tokenize", MODEL, stdin=text).stdout), ids)
        self.assertEqual(run("tokenize", MODEL, "--count", text).stdout, f"{len(ids)}\n")
        shown = run("tokenize", MODEL, "--show", text + "\n\t\x9b").stdout
        self.assertNotIn("\x1b", shown)
        self.assertTrue(shown.startswith("Once("), shown)
        self.assertRegex(shown, r" upon\(.*\\xe5\(.*\\n\(.*\\x09\(")
        self.assertNotIn("\x9b", shown)
        self.assertEqual(json.loads(run("tokenize", MODEL, text).stdout), ids)
        self.assertEqual(run("tokenize", MODEL, "--ids", json.dumps(ids), "[12, 7]", "99").stdout.splitlines()[0], text)
        self.assertEqual(len(run("tokenize", MODEL, "[a, b]", "c").stdout.splitlines()), 2)
        source = self.path("text.txt", text + "\n")
        for flags in (["--input", source], ["--input", "-"], ["--count", "--input", source]):
            self.assertEqual(run("tokenize", MODEL, *flags, stdin=text + "\n").stdout, run("tokenize", MODEL, *flags[:-2], text + "\n").stdout)
        marked = "\ufeff" + text  # by an editor of Windows
        for stdin, given in ((None, self.path("marked.txt", marked)), (marked, "-")):
            self.assertEqual(json.loads(run("tokenize", MODEL, "--input", given, stdin=stdin).stdout), ids)
        self.assertEqual(run("tokenize", MODEL, "--ids", "--input", self.path("ids.txt", json.dumps(ids))).stdout, text + "\n")
        self.assert_one_sentence(run("tokenize", MODEL, "--input", self.path("none.txt")), "none.txt")
        with open(self.path("large.txt"), "wb") as large:
            large.truncate((64 << 20) + 1)
        self.assert_one_sentence(run("tokenize", MODEL, "--input", large.name), "67108865 bytes long, expected at most 67108864")
        for args in (["a", "--input", source], ["--input", source, "a"], ["--input", source, "--", "a"]):
            self.assertEqual(run("tokenize", MODEL, *args).returncode, 2, args)
        for bad in ("1 two", "99999999999", "1 -", "two"):
            self.assertEqual(run("tokenize", MODEL, "--ids", bad).returncode, 2, bad)
        unknown = run("tokenize", MODEL, "--ids", f"{ids[0]} 4098 99999999 -1")
        self.assertEqual((unknown.returncode, unknown.stdout), (0, "Once\n"))
        self.assertEqual(unknown.stderr, "nanovllm: left out, not in the vocabulary: 99999999, -1\n")
        self.assertEqual(run("tokenize", MODEL, "a", "--no-such-flag").returncode, 2)
        self.assertEqual(run("tokenize", MODEL, "--count", "--", "--no-such-flag", "-x").stdout.count("\n"), 2)

    def test_benchmarks_print_a_table_and_json(self):
        small = ["--num-prompts", "3", "--input-len", "16", "--output-len", "4", "-q"]
        result = run("bench", "throughput", MODEL, *small)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("tok/s", result.stdout)
        facts = json.loads(run("bench", "throughput", MODEL, *small, "--json").stdout)
        self.assertEqual((facts["requests"], facts["input_tokens"], facts["output_tokens"]), (3, 48, 12))
        self.assertGreater(facts["output_tokens_per_second"], 0)
        facts = json.loads(run("bench", "latency", MODEL, "--input-len", "16", "--output-len", "4", "-q", "--json").stdout)
        self.assertGreater(facts["decode_tokens_per_second"], 0)
        # One token is no decode: it comes from the prefill.
        for command, shown, left_out in (("latency", "prefill", "decode"), ("throughput", "to first token", "per output token")):
            one = ["bench", command, MODEL, "--input-len", "16", "--output-len", "1", "-q"]
            one += ["--num-prompts", "3"] if command == "throughput" else []
            table, facts = run(*one).stdout, json.loads(run(*one, "--json").stdout)
            self.assertIn(shown, table)
            self.assertNotIn(left_out, table)
            self.assertFalse({"decode_tokens_per_second", "tpot_seconds"} & set(facts))
        for command in ("latency", "throughput"):
            result = run("bench", command, MODEL, "--input-len", "16", "--output-len", "49", "--max-model-len", "64")
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn("max_model_len", result.stderr)

    def test_a_batch_that_cannot_run_at_once_is_refused(self):
        batch = ["bench", "latency", MODEL, "--batch-size", "4", "--input-len", "16", "--output-len", "17", "--num-iters", "1", "-q"]
        for flags, needed, there in ((["--max-num-seqs", "3"], "4 sequences in a step", 3), (["--max-num-batched-tokens", "3"], "4 tokens in a step", 3),
                                     (["--kvcache-block-size", "16", "--num-kvcache-blocks", "7"], "8 blocks of the KV cache", 7)):
            result = run(*batch, *flags)
            self.assert_one_sentence(result, f"a batch of 4 needs {needed} at once and there are {there}; ask for less, or raise {flags[-2]}", 2)
            self.assertEqual(result.stdout, "")
            trace = self.path("trace.json")
            result = run(*batch, *flags[:-1], there + 1, "--trace", trace)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            steps = [event["args"] for event in json.loads(trace.read_text()) if event.get("name") == "step"]
            self.assertEqual(sum(step["preemptions"] for step in steps), 0)

    def test_short_latencies_are_shown_in_milliseconds(self):
        result = run("bench", "latency", MODEL, "--input-len", "4", "--output-len", "2", "-q")
        self.assertRegex(result.stdout, r"(?m)^latency +(\d+\.\d ms|\d+\.\d{3} s)$")
        self.assertNotRegex(result.stdout, r" 0\.0\d* s")


if __name__ == "__main__":
    unittest.main()
