"""A published model as people have it, a GGUF file, computed on its codes: what transformers in float32 gives on its dequantised weights.

usage: real_model_test.py BINARY FILE.gguf GOLDENS      GOLDENS holds smollm2-135m-instruct.json and smollm2-perplexity.json
"""
import itertools
import json
import math
import os
import subprocess
import sys
import unittest

BINARY, MODEL, GOLDENS = sys.argv[1:4] if len(sys.argv) == 4 else ("", "", "")
os.environ.update(NANOVLLM=BINARY, NANOVLLM_MODEL=MODEL)
import serve_testing  # noqa: E402

GREEDY = {"temperature": 0, "max_tokens": 48, "ignore_eos": True, "skip_special_tokens": False}


def golden(name):
    with open(os.path.join(GOLDENS, name), encoding="utf-8") as file:
        return json.load(file)


def run(command, *arguments, text=""):
    result = subprocess.run([BINARY, command, MODEL, *arguments], input=text, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{command} {arguments}: {result.stderr}")
    return result.stdout


def generate(requests, *arguments):
    """Results in the order of the requests."""
    text = "".join(json.dumps(request) + "\n" for request in requests)
    lines = [json.loads(line) for line in run("generate", "--input", "-", "-q", *arguments, text=text).splitlines()]
    return sorted(lines, key=lambda line: line["index"])


def prompt_logprobs(result, ids):
    """What a result has for each id of its prompt but the first."""
    return [position[str(token)]["logprob"] for position, token in zip(result["prompt_logprobs"][1:], ids[1:], strict=True)]


def answer_of(case):
    return case["text"].split("<|im_end|>")[0].strip()


class RealModel(unittest.TestCase):
    def perplexity(self, dtype):
        ids = golden("smollm2-perplexity.json")["ids"]
        request = {"prompt_token_ids": ids, "sampling_params": {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 0}}
        values = prompt_logprobs(generate([request], "--dtype", dtype, "--max-model-len", str(len(ids) + 8))[0], ids)
        return math.exp(-math.fsum(values) / len(values))

    def test_perplexity_is_that_of_transformers(self):
        expected = golden("smollm2-perplexity.json")["transformers_float32"]["perplexity"]
        for dtype, tolerance in (("auto", 1e-3), ("float32", 5e-5)):
            measured = self.perplexity(dtype)
            print(f"perplexity, --dtype {dtype}: {measured:.5f}; transformers in float32: {expected:.5f}", file=sys.stderr)
            self.assertLess(abs(measured / expected - 1), tolerance, dtype)

    def test_weights_stay_in_their_codes(self):
        sizes = {}
        for layout in ("auto", "bfloat16"):
            facts = json.loads(run("info", "--json", "--kv-cache-memory", "64M", "--weight-layout", layout))
            sizes[layout] = {name: of["bytes"] for name, of in facts["weight_layouts"].items()}
        print(f"bytes of layouts: {sizes}", file=sys.stderr)
        self.assertEqual(set(sizes["auto"]), {"group", "byte"})
        self.assertLess(sum(sizes["auto"].values()), 0.5 * sum(sizes["bfloat16"].values()))

    def test_greedy_outputs_are_those_of_transformers(self):
        cases = golden("smollm2-135m-instruct.json")
        for key, layout in (("prompt_token_ids", "auto"), ("prompt", "auto"), ("prompt_token_ids", "bfloat16")):
            chosen = [case for case in cases if key in case]
            results = generate([{key: case[key], "sampling_params": GREEDY} for case in chosen], "--dtype", "float32", "--weight-layout", layout)
            for case, result in zip(chosen, results):
                self.assertEqual(result["token_ids"], case["token_ids"], case.get("prompt"))
                self.assertEqual(result["text"], case["text"])

    def test_greedy_outputs_in_bfloat16_part_from_them_only_at_near_ties(self):
        cases = golden("smollm2-135m-instruct.json")
        requests = [{"prompt_token_ids": case["prompt_token_ids"], "sampling_params": GREEDY} for case in cases]
        for layout in ("auto", "bfloat16"):
            ties = []
            for case, result in zip(cases, generate(requests, "--weight-layout", layout)):
                self.assertEqual(len(result["token_ids"]), len(case["token_ids"]))
                differing = (i for i, (ours, theirs) in enumerate(zip(result["token_ids"], case["token_ids"])) if ours != theirs)
                ties += [case["margins"][i] for i in itertools.islice(differing, 1)]  # behind it the texts are two
            print(f"greedy outputs, --weight-layout {layout}: {len(cases) - len(ties)} of {len(cases)} equal; the others part where the best two logits are "
                  f"{', '.join(f'{tie:.3f}' for tie in ties)} apart", file=sys.stderr)
            self.assertLessEqual(len(ties), len(cases) * 2 // 5, layout)
            self.assertTrue(all(tie < 0.2 for tie in ties), layout)

    def test_outputs_end_at_the_models_and_the_requests_stop_tokens(self):
        cases = golden("smollm2-135m-instruct.json")
        params = {"temperature": 0, "max_tokens": 48}
        requests = [{"prompt_token_ids": case["prompt_token_ids"], "sampling_params": params} for case in cases]
        requests += [{"prompt_token_ids": case["prompt_token_ids"],
                      "sampling_params": {**params, "ignore_eos": True, "stop_token_ids": [case["token_ids"][5]]}} for case in cases]
        results = generate(requests, "--dtype", "float32")
        num_ended = 0
        for case, ended, stopped in zip(cases, results[:len(cases)], results[len(cases):], strict=True):
            ends = "<|im_end|>" in case["text"]
            num_ended += ends
            self.assertEqual(ended["finish_reason"], "stop" if ends else "length", case["text"])
            self.assertEqual(ended["token_ids"], case["token_ids"][:len(ended["token_ids"])])
            self.assertEqual(ended["text"], case["text"].split("<|im_end|>")[0])
            first = case["token_ids"].index(case["token_ids"][5])
            self.assertEqual((stopped["finish_reason"], stopped["token_ids"][:first]), ("stop", case["token_ids"][:first]))
            self.assertLessEqual(len(stopped["token_ids"]), first + 1)
        self.assertGreaterEqual(num_ended, 3)

    def test_log_probabilities_of_prompts_are_those_of_transformers(self):
        cases = golden("smollm2-135m-instruct.json")
        params = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 0}
        requests = [{"prompt_token_ids": case["prompt_token_ids"], "sampling_params": params} for case in cases]
        # bfloat16 keeps 8 bits of each activation.
        for dtype, most, mean in (("float32", 2e-4, 5e-5), ("auto", 0.5, 0.08)):
            worst, total, count = 0, 0, 0
            for case, result in zip(cases, generate(requests, "--dtype", dtype)):
                measured = prompt_logprobs(result, case["prompt_token_ids"])
                self.assertEqual(len(measured), len(case["prompt_logprobs"]))
                for ours, theirs in zip(measured, case["prompt_logprobs"]):
                    worst, total, count = max(worst, abs(ours - theirs)), total + abs(ours - theirs), count + 1
            print(f"{count} log-probabilities of prompts, --dtype {dtype}: at most {worst:.5f} off, {total / count:.5f} in the mean",
                  file=sys.stderr)
            self.assertLess(worst, most, dtype)
            self.assertLess(total / count, mean, dtype)

    def test_prompts_become_hugging_faces_ids(self):
        for case in golden("smollm2-135m-instruct.json"):
            text = case.get("prompt", case.get("rendered"))
            self.assertEqual(json.loads(run("tokenize", "--", text) or "null"), case["prompt_token_ids"], text)

    def test_chats_end_where_the_model_ends_them(self):
        for case in golden("smollm2-135m-instruct.json"):
            if "messages" not in case:
                continue
            question = case["messages"][0]["content"]
            arguments = ("--temperature", "0", "--max-tokens", "48", "--dtype", "float32", "-m", question)
            self.assertEqual(run("chat", *arguments).strip(), answer_of(case), question)

    def test_the_server_answers_chats_as_transformers_does(self):
        cases = [case for case in golden("smollm2-135m-instruct.json") if "messages" in case]
        self.assertGreaterEqual(len(cases), 5)
        server = serve_testing.Server("--dtype", "float32")
        self.addCleanup(server.close)
        for case in cases:
            answer = server.post("/v1/chat/completions", {"messages": case["messages"], "temperature": 0, "max_tokens": 48}).json
            self.assertEqual(answer["choices"][0]["message"]["content"].strip(), answer_of(case))
            self.assertEqual(answer["choices"][0]["finish_reason"], "stop" if "<|im_end|>" in case["text"] else "length")
            self.assertEqual(answer["usage"]["prompt_tokens"], len(case["prompt_token_ids"]))


if __name__ == "__main__":
    if not BINARY:
        sys.exit(__doc__)
    if not os.path.isdir(GOLDENS):
        sys.exit(f"{GOLDENS}: no such folder; it holds what transformers gives on {os.path.basename(MODEL)}")
    unittest.main(argv=sys.argv[:1], verbosity=2)
