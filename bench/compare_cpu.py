#!/usr/bin/env python3
"""Compares nanovllm with llama.cpp and ik_llama.cpp on this CPU, round by round, and prints medians and ratios.

The peers are programs of yours: build them for this machine and convert the same model with llama.cpp's
convert_hf_to_gguf.py --outtype bf16. Every round runs each engine once on each case, so that a noisy neighbour hits
all; up to the first token each is started twice, and the second start counts.

  bench/compare_cpu.py MODEL_DIR --gguf MODEL.gguf --llama DIR_WITH_LLAMA_BENCH --ik DIR_WITH_IKS_LLAMA_BENCH
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

# name, batch size, prompt tokens, output tokens, what is measured
CASES = [
    ("prefill 512", 1, 512, 1, "prefill"),
    ("prefill 2048", 1, 2048, 1, "prefill"),
    ("decode, batch 1, empty context", 1, 1, 64, "decode"),
    ("decode, batch 1, context 1024", 1, 1024, 48, "decode"),
    ("decode, 16 requests, context 128-192", 16, 128, 64, "decode"),
    ("decode, 16 requests, context 512-576", 16, 512, 64, "decode"),
]


SCRATCH = tempfile.TemporaryDirectory()  # some engines leave logs where they run


def run(command):
    command = [str(c) for c in command]
    try:
        # A model of random weights may write half a character.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", cwd=SCRATCH.name)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}; --help says which programs are needed")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()}")
    return done


def output_of(command):
    return run(command).stdout


def nanovllm(args, batch, prompt, output, phase):
    # A KV cache of what the case needs, as the peers get one: then the warmup touches all of it, as theirs do.
    blocks = batch * -(-(prompt + output - 1) // 256)  # the last token is never read
    line = output_of([args.nanovllm, "bench", "latency", args.model, "--batch-size", batch, "--input-len", prompt, "--output-len", output,
                      "--num-kvcache-blocks", blocks, "--num-warmup", 1, "--num-iters", 1, "--num-threads", args.threads, "--json",
                      "-q"])
    return json.loads(line)[f"{phase}_tokens_per_second"]


def llama_bench(folder, args, extra, **want):
    """The average tok/s of the test whose fields equal `want`."""
    text = output_of([folder / "llama-bench", "-m", args.gguf, "-t", args.threads, "-r", 1, "-o", "json", *extra])
    tests = [t for t in json.loads(text) if all(t.get(key) == value for key, value in want.items())]
    return tests[-1]["avg_ts"]


def batched_bench(folder, args, batch, prompt, output, extra):
    done = run([folder / "llama-batched-bench", "-m", args.gguf, "-t", args.threads, "-c", batch * (prompt + output), "-b", 2048,
                      "-npp", prompt, "-ntg", output, "-npl", batch, *extra])
    text = done.stdout + done.stderr  # ik_llama.cpp writes its table to the latter
    row = [r for r in text.splitlines() if re.match(r"\|\s*\d+ \|", r)][-1]
    return float(row.split("|")[8])  # S_TG t/s


def llama(args, batch, prompt, output, phase):
    if batch > 1:
        return batched_bench(args.llama, args, batch, prompt, output, ["-fa", "on"])
    if phase == "prefill":
        return llama_bench(args.llama, args, ["-p", prompt, "-n", 0, "-fa", 1], n_prompt=prompt)
    return llama_bench(args.llama, args, ["-p", 0, "-n", output, "-d", prompt if prompt > 1 else 0, "-fa", 1], n_gen=output)


def ik(args, batch, prompt, output, phase):
    if batch > 1:
        return batched_bench(args.ik, args, batch, prompt, output, ["-rtr", "-fa", "on"])
    common = ["-rtr", 1, "-fa", 1]
    if phase == "prefill":
        return llama_bench(args.ik, args, [*common, "-p", prompt, "-n", 0], n_prompt=prompt)
    if prompt == 1:
        return llama_bench(args.ik, args, [*common, "-p", 0, "-n", output], n_gen=output)
    return llama_bench(args.ik, args, [*common, "-p", 0, "-n", 0, "-gp", f"{prompt},{output}"], n_gen=output)


def seconds(command):
    # Once before: then the page cache is warm, and so is the memory that a host gives a virtual machine at its first touch.
    run(command)
    start = time.monotonic()
    run(command)
    return time.monotonic() - start


def first_token(args):
    """Seconds from command to first token of each engine."""
    text = "Hello, my name is"
    commands = {"nanovllm": [args.nanovllm, "generate", args.model, "-q", "-p", text, "--max-tokens", 1, "--num-threads", args.threads]}
    if args.llama:
        commands["llama.cpp"] = [args.llama / "llama-completion", "-m", args.gguf, "-t", args.threads, "-p", text, "-n", 1, "-no-cnv", "-c", 512]
    if args.ik:
        commands["ik_llama.cpp"] = [args.ik / "llama-cli", "-m", args.gguf, "-t", args.threads, "-p", text, "-n", 1, "-rtr", "-c", 512]
    return {name: seconds(command) for name, command in commands.items()}


def cpu_times():
    """Ticks of all CPUs that the host gave to others, and all ticks."""
    ticks = [int(field) for field in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return ticks[7], sum(ticks)


def stolen_since(before):
    """What makes a figure of a virtual machine worthless."""
    now = cpu_times()
    share = (now[0] - before[0]) / max(1, now[1] - before[1])
    return f" ({share:.0%} of the time stolen by the host)" if share > 0.02 else ""


def row(name, values, peers, bandwidth=()):
    """One line of the table: medians, the median over the rounds of ours / the better peer, what the probe read."""
    medians = {engine: statistics.median(v) for engine, v in values.items()}
    better = max if name != "command to first token, s" else min
    cells = [f"{medians[e]:.2f}" if e in medians else "" for e in ("nanovllm", *peers)]
    ratio = ""
    if peers:
        ratios = [ours / better(values[p][i] for p in peers) for i, ours in enumerate(values["nanovllm"])]
        ratio = f"{statistics.median(ratios):.2f}x"
    probed = f"{statistics.median(bandwidth):.1f} ({min(bandwidth):.1f} to {max(bandwidth):.1f})" if bandwidth else ""
    return "| " + " | ".join([name, *cells, ratio, probed]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="Hugging Face model folder")
    parser.add_argument("--gguf", type=pathlib.Path, help="the same model for the peers")
    parser.add_argument("--llama", type=pathlib.Path, help="folder with llama.cpp's llama-bench, llama-batched-bench, llama-completion")
    parser.add_argument("--ik", type=pathlib.Path, help="folder with ik_llama.cpp's llama-bench, llama-batched-bench, llama-cli")
    parser.add_argument("--nanovllm", type=pathlib.Path, default=pathlib.Path("build/nanovllm"))
    parser.add_argument("--probe", type=pathlib.Path, default=pathlib.Path("build/bench/nanovllm_memory_probe"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="regular expression: only the cases it finds")
    args = parser.parse_args()
    for name, value in vars(args).items():
        if isinstance(value, pathlib.Path):
            setattr(args, name, value.resolve())
    engines = {"nanovllm": nanovllm}
    if args.llama:
        engines["llama.cpp"] = llama
    if args.ik:
        engines["ik_llama.cpp"] = ik
    peers = [e for e in engines if e != "nanovllm"]
    table = {case[0]: {e: [] for e in engines} for case in CASES}
    bandwidth = {case[0]: [] for case in CASES}
    firsts = []
    for _ in range(args.rounds):
        for name, *shape in CASES:
            if not re.search(args.only, name):
                continue
            for engine, measure in engines.items():
                before = cpu_times()
                table[name][engine].append(measure(args, *shape))
                print(f"{name}: {engine} {table[name][engine][-1]:.1f}{stolen_since(before)}", file=sys.stderr, flush=True)
            if args.probe.exists():
                bandwidth[name].append(float(output_of([args.probe, args.threads]).split()[0]))
                print(f"{name}: the probe reads {bandwidth[name][-1]:.1f} GB/s", file=sys.stderr, flush=True)
        if re.search(args.only, "first token"):
            before = cpu_times()
            firsts.append(first_token(args))
            print(f"first token: {firsts[-1]}{stolen_since(before)}", file=sys.stderr, flush=True)
    print("| tok/s | " + " | ".join(["nanovllm", *peers, "ratio to the better peer", "DRAM reads probed beside it, GB/s"]) + " |")
    print("|---" * (len(engines) + 3) + "|")
    for name, values in table.items():
        if values["nanovllm"]:
            print(row(name, values, peers, bandwidth[name]))
    if firsts:
        print(row("command to first token, s", {e: [f[e] for f in firsts] for e in engines}, peers))


if __name__ == "__main__":
    main()
