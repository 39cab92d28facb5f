#!/usr/bin/env python3
"""What a call from Python costs beside the same call from C++, which `nanovllm bench latency` times: pairs of runs, one
after the other, in changing order. Run it with a Python that has the package nanovllm.

  bench/python_cost.py MODEL [BINARY]
"""
import argparse
import json
import statistics
import subprocess
import time

import nanovllm

# Name, prompts, tokens of each, output tokens of each, runs in a row.
CASES = (("batch 1", 1, 8, 256, 8), ("10,000 prompts", 10000, 8, 16, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("binary", nargs="?", default="build/nanovllm")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--num-threads", type=int, default=0)
    flags = parser.parse_args()
    engine = {"max_num_seqs": max(prompts for _, prompts, *_ in CASES), "kvcache_block_size": 16, "num_threads": flags.num_threads}
    llm = nanovllm.LLM(flags.model, **engine)

    def run_cpp(num_prompts, input_len, output_len, times):
        command = [flags.binary, "bench", "latency", flags.model, "--json", "-q", "--num-iters", times,
                   "--batch-size", num_prompts, "--input-len", input_len, "--output-len", output_len]
        for name, value in engine.items():
            command += ["--" + name.replace("_", "-"), value]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)["latency_seconds"]["all"]

    def run_python(num_prompts, input_len, output_len, times):
        params = nanovllm.SamplingParams(temperature=0, ignore_eos=True, max_tokens=output_len)
        seconds = []
        for run in range(times):
            prompts = [[100 + (7 * i + j + 31 * run) % 3900 for j in range(input_len)] for i in range(num_prompts)]
            start = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            seconds.append(time.perf_counter() - start)
        return seconds

    for name, *size in CASES:
        run_python(*size)
        pairs = []
        for i in range(flags.pairs):
            python, cpp = (run_python(*size), run_cpp(*size)) if i % 2 else reversed((run_cpp(*size), run_python(*size)))
            pairs.append((statistics.median(python), statistics.median(cpp), min(python), min(cpp)))
        low, middle, high = statistics.quantiles([python / cpp - 1 for python, cpp, _, _ in pairs], n=4)
        least = min(pair[2] for pair in pairs) / min(pair[3] for pair in pairs) - 1
        print(f"{name}: C++ {statistics.median(pair[1] for pair in pairs):.4f} s, Python {middle:+.2%} "
              f"(quartiles {low:+.2%} and {high:+.2%} of {len(pairs)} pairs; least against least {least:+.2%})")


if __name__ == "__main__":
    main()
