#!/usr/bin/env python3
"""Prints the table of docs/quantization.md: of each model and format bits a weight, bytes, perplexity and decode's tok/s.

A GGUF file is run in its codes and decoded to bfloat16, a folder of bfloat16 as it is and as `nanovllm quantize` writes it in
each format. The perplexity is that of the first ids of one text, in one window, each id given all before it. Speeds are medians of rounds that
run all ways of a model in turn, and so is the ratio to bfloat16.

  bench/quantization_table.py MODEL... --text FILE [--rounds 5]
"""
import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

DECODED = ("--weight-layout", "bfloat16")
SPEED = ("--batch-size", 1, "--input-len", 1, "--output-len", 64, "--num-kvcache-blocks", 1, "--num-warmup", 1, "--num-iters", 3, "--json", "-q")


@dataclasses.dataclass
class Way:
    model: pathlib.Path
    name: str
    flags: tuple[str, ...]
    speeds: list[float] = dataclasses.field(default_factory=list)


def run(args, command, model, *flags, text=""):
    words = [str(word) for word in (args.nanovllm, *command, model, *flags)]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def ways_of(args, model, scratch):
    """The way that others are compared with is the last."""
    if model.is_dir():
        ways = [Way(pathlib.Path(scratch) / form, form, ()) for form in ("int8", "int4", "fp8")]
        for way in ways:
            run(args, ["quantize"], model, way.model, "--format", way.name, "-q")
        return [*ways, Way(model, "bfloat16", ())]
    return [Way(model, "as it is", ()), Way(model, "bfloat16", DECODED)]


def info(args, way, *flags):
    return json.loads(run(args, ["info"], way.model, "--json", "--kv-cache-memory", "64M", *way.flags, *flags))


def packed_bytes(facts):
    """What a decode step reads: all matrices but the table of embeddings, and of a mixture all experts."""
    return sum(layout["bytes"] for layout in facts["weight_layouts"].values())


def perplexity(args, way, ids):
    request = {"prompt_token_ids": ids, "sampling_params": {"temperature": 0, "max_tokens": 1, "ignore_eos": True, "prompt_logprobs": 0}}
    out = run(args, ["generate"], way.model, "--num-threads", args.threads, "--input", "-", "-q", "--max-model-len", len(ids) + 8, *way.flags, text=json.dumps(request) + "\n")
    positions = json.loads(out.splitlines()[0])["prompt_logprobs"]
    values = [position[str(token)]["logprob"] for position, token in zip(positions[1:], ids[1:], strict=True)]
    return math.exp(-math.fsum(values) / len(values))


def speed(args, way):
    """tok/s of one request."""
    return json.loads(run(args, ["bench", "latency"], way.model, *SPEED, "--num-threads", args.threads, *way.flags))["decode_tokens_per_second"]


def print_rows(args, model, ways, text):
    ids = json.loads(run(args, ["tokenize"], model, "--input", "-", text=text))[:args.tokens] if text else []
    num_weights = packed_bytes(info(args, Way(model, "float32", DECODED), "--dtype", "float32")) / 4
    for _ in range(args.rounds):
        for way in ways:
            way.speeds.append(speed(args, way))
    perplexities = [perplexity(args, way, ids) if ids else math.nan for way in ways]
    for way, value in zip(ways, perplexities, strict=True):
        size = packed_bytes(info(args, way))
        texts, rates = "", ""
        if ids:
            texts = f"{value:.3f}" if way is ways[-1] else f"{value:.3f} ({value / perplexities[-1] - 1:+.2%})"
        if way.speeds:
            ratios = [ours / theirs for ours, theirs in zip(way.speeds, ways[-1].speeds, strict=True)]
            rates = f"{statistics.median(way.speeds):.1f}" + ("" if way is ways[-1] else f" ({statistics.median(ratios):.2f}x)")
        print(f"| {model.name} | {way.name} | {8 * size / num_weights:.2f} | {size / 1e6:.1f} | {texts} | {rates} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=pathlib.Path, nargs="+", metavar="MODEL", help="GGUF file, or folder of bfloat16")
    parser.add_argument("--nanovllm", type=pathlib.Path, default=pathlib.Path("build/nanovllm"))
    parser.add_argument("--text", type=pathlib.Path, help="UTF-8, for the perplexity; none = no perplexities")
    parser.add_argument("--tokens", type=int, default=4096, help="ids of the text that count (default: 4096)")
    parser.add_argument("--rounds", type=int, default=5, help="of speeds; 0 = none (default: 5)")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    text = args.text.read_text(encoding="utf-8") if args.text else ""
    print("| model | weights | bits a weight | MB that a step reads | perplexity | tok/s |")
    print("|---|---|---|---|---|---|")
    for model in args.models:
        with tempfile.TemporaryDirectory() as scratch:
            print_rows(args, model, ways_of(args, model, scratch), text)


if __name__ == "__main__":
    main()
