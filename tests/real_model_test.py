"""A published model as people have it, a GGUF file: what transformers in float32 gives on its dequantised weights.

usage: real_model_test.py BINARY FILE.gguf GOLDENS      GOLDENS holds smollm2-135m-instruct.json and smollm2-perplexity.json
"""
import json
import math
import os
import subprocess
import sys
import unittest

BINARY, MODEL, GOLDENS = sys.argv[1:4] if len(sys.argv) == 4 else ("", "", "")


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


class RealModel(unittest.TestCase):
    def perplexity(self, dtype):
        ids = golden("smollm2-perplexity.json")["ids"]
        request = {"prompt_token_ids": ids, "sampling_params": {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 0}}
        positions = generate([request], "--dtype", dtype, "--max-model-len", str(len(ids) + 8))[0]["prompt_logprobs"][1:]
        self.assertEqual(len(positions), len(ids) - 1)
        values = [position[str(token)] for position, token in zip(positions, ids[1:])]
        # A number or an object with one, as results have had them.
        return math.exp(-math.fsum(v["logprob"] if isinstance(v, dict) else v for v in values) / len(values))

    def test_perplexity_is_that_of_transformers(self):
        expected = golden("smollm2-perplexity.json")["transformers_float32"]["perplexity"]
        for dtype, tolerance in (("auto", 1e-3), ("float32", 5e-5)):
            measured = self.perplexity(dtype)
            print(f"perplexity, --dtype {dtype}: {measured:.5f}; transformers in float32: {expected:.5f}", file=sys.stderr)
            self.assertLess(abs(measured / expected - 1), tolerance, dtype)

    def test_greedy_outputs_are_those_of_transformers(self):
        cases = golden("smollm2-135m-instruct.json")
        params = {"temperature": 0, "max_tokens": 48, "ignore_eos": True, "skip_special_tokens": False}
        for key in ("prompt_token_ids", "prompt"):
            chosen = [case for case in cases if key in case]
            results = generate([{key: case[key], "sampling_params": params} for case in chosen], "--dtype", "float32")
            for case, result in zip(chosen, results):
                self.assertEqual(result["token_ids"], case["token_ids"], case.get("prompt"))
                self.assertEqual(result["text"], case["text"])

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
            self.assertEqual(run("chat", *arguments).strip(), case["text"].split("<|im_end|>")[0].strip(), question)


if __name__ == "__main__":
    if not BINARY:
        sys.exit(__doc__)
    if not os.path.isdir(GOLDENS):
        sys.exit(f"{GOLDENS}: no such folder; it holds what transformers gives on {os.path.basename(MODEL)}")
    unittest.main(argv=sys.argv[:1], verbosity=2)
