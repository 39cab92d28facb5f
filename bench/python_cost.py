#!/usr/bin/env python3
"""What a call from Python costs beside the same call from C++: pairs of runs, one after the other, in changing order.

Run it with a Python that has the package nanovllm:

  bench/python_cost.py MODEL build/bench/nanovllm_python_cost
"""
import argparse
import statistics
import subprocess
import time

import nanovllm

# Name, prompts, tokens for each.
CASES = (("batch 1", 1, 256), ("10,000 prompts", 10000, 16))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("driver")
    parser.add_argument("--seconds", type=float, default=120, help="for each case")
    parser.add_argument("--num-threads", type=int, default=0)
    flags = parser.parse_args()

    llm = nanovllm.LLM(flags.model, num_threads=flags.num_threads)
    driver = subprocess.Popen([flags.driver, flags.model, str(flags.num_threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run_cpp(num_prompts, num_tokens):
        print(num_prompts, num_tokens, file=driver.stdin, flush=True)
        return [float(seconds) for seconds in driver.stdout.readline().split()]

    def run_python(num_prompts, num_tokens):
        params = nanovllm.SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_tokens)
        prompts = [f"Day {i}" for i in range(num_prompts)]
        start, busy = time.perf_counter(), time.process_time()
        llm.generate(prompts, params, use_tqdm=False)
        return [time.perf_counter() - start, time.process_time() - busy]

    for name, *size in CASES:
        run_cpp(*size), run_python(*size)
        pairs = []
        end = time.monotonic() + flags.seconds
        while time.monotonic() < end:
            if len(pairs) % 2:
                cpp, python = run_cpp(*size), run_python(*size)
            else:
                python, cpp = run_python(*size), run_cpp(*size)
            pairs.append((python, cpp))
        for i, clock in enumerate(("passed", "of the processor")):
            ratios = [python[i] / cpp[i] - 1 for python, cpp in pairs]
            quartiles = statistics.quantiles(ratios, n=4)
            cpp = statistics.median(cpp[i] for _, cpp in pairs)
            least = min(python[i] for python, _ in pairs) / min(cpp[i] for _, cpp in pairs) - 1
            print(f"{name}: {len(pairs)} pairs, C++ {cpp:.4f} s {clock}, Python {quartiles[1]:+.2%} "
                  f"(quartiles {quartiles[0]:+.2%} {quartiles[2]:+.2%}; least against least {least:+.2%})")


if __name__ == "__main__":
    main()
