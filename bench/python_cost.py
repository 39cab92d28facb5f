#!/usr/bin/env python3
"""What LLM.generate costs beside the same call in C++: two processes that stay, one of each, run in turns, and each pair of
runs gives a ratio. Run it with a Python that has the package nanovllm, on cores of its own (taskset).

  bench/python_cost.py MODEL [BINARY]
"""
import argparse
import pathlib
import random
import statistics
import subprocess
import sys
import time

# Prompts, tokens of each, output tokens of each, pairs in a round, and what Python may cost.
CASES = ((1, 8, 128, 50, 0.01), (10000, 4, 12, 2, 0.02))
NUM_SEQS = max(case[0] for case in CASES)


def serve(model, num_threads):
    """What nanovllm_python_cost is in C++."""
    import nanovllm

    llm = nanovllm.LLM(model, num_threads=num_threads, max_num_seqs=NUM_SEQS, kvcache_block_size=16, enable_prefix_caching=False)
    for line in sys.stdin:
        num_prompts, input_len, output_len = map(int, line.split())
        params = nanovllm.SamplingParams(temperature=0, ignore_eos=True, max_tokens=output_len)
        prompts = [[100 + (7 * i + j) % 3900 for j in range(input_len)] for i in range(num_prompts)]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        print(f"{time.perf_counter() - start:.6f}", flush=True)
        del outputs


class Side:
    def __init__(self, *command):
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, *size):
        print(*size, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def interval(ratios):
    """What 95% of the medians are of ratios drawn from these."""
    draw = random.Random(0).choices
    medians = sorted(statistics.median(draw(ratios, k=len(ratios))) for _ in range(1000))
    return medians[25], medians[974]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("binary", nargs="?", default="build/bench/nanovllm_python_cost")
    parser.add_argument("--rounds", type=int, default=5, help="of new processes")
    parser.add_argument("--num-threads", type=int, default=0)
    parser.add_argument("--python", default=sys.executable, help="the one that is measured")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.serve:
        return serve(flags.model, flags.num_threads)
    ratios = {case: [] for case in CASES}
    seconds = {case: [] for case in CASES}
    for number in range(flags.rounds):
        cpp = Side(flags.binary, flags.model, flags.num_threads, NUM_SEQS)
        python = Side(flags.python, pathlib.Path(__file__), flags.model, "--serve", "--num-threads", flags.num_threads)
        for case in CASES:
            *size, pairs, limit = case
            for side in (cpp, python):
                side.run(*size)  # the first is slower
            for i in range(pairs):
                first, second = (cpp, python) if (i + number) % 2 else (python, cpp)
                times = {first: first.run(*size), second: second.run(*size)}
                ratios[case].append(times[python] / times[cpp] - 1)
                seconds[case].append(times[cpp])
            low, high = interval(ratios[case])
            print(f"round {number + 1} of {flags.rounds}, {size[0]:,} prompts: C++ {statistics.median(seconds[case]):.4f} s, Python "
                  f"{statistics.median(ratios[case]):+.2%} (95% interval {low:+.2%} to {high:+.2%}, {len(ratios[case])} pairs so far); "
                  f"it may cost {limit:.0%}", flush=True)
        cpp.close()
        python.close()


if __name__ == "__main__":
    main()
