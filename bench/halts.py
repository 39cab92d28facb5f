#!/usr/bin/env python3
"""How long a stream halts while the server computes the long prompt of another request.

Starts `nanovllm serve MODEL`, begins a stream, sends a prompt of --prompt-len random tokens and prints the times between the
stream's chunks until that prompt has its token, or for --seconds. Further arguments are serve's flags:

  bench/halts.py build/nanovllm MODEL --prompt-len 32000 --max-step-seconds 0.5
"""
import argparse
import http.client
import json
import random
import re
import subprocess
import sys
import threading
import time


def start(binary, model, flags):
    """The server and its port, when it is ready."""
    server = subprocess.Popen([binary, "serve", model, "--port", "0", "--access-log", "none", *flags],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    port = None
    for line in server.stderr:
        print(line, end="", file=sys.stderr)
        if found := re.search(r"listening on .*:(\d+)", line):
            port = int(found.group(1))
        if "ready:" in line:
            threading.Thread(target=lambda: [print(line, end="", file=sys.stderr) for line in server.stderr], daemon=True).start()
            return server, port
    sys.exit(f"{binary} serve {model} ended with status {server.wait()}")


def ask(port, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    connection.request("POST", "/v1/completions", json.dumps({"ignore_eos": True, **body}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {answer.read().decode()}")
    return answer


def measure(port, args):
    """The times of the stream's chunks, and when the prompt came and had its token (None = not in time)."""
    times, errors, end = [], [], threading.Event()

    def begin_thread(work):
        def run():
            try:
                work()
            except Exception as error:
                errors.append(error)
                end.set()
        threading.Thread(target=run, daemon=True).start()

    def stream():
        prompt = list(range(1000, 1050))
        for line in ask(port, {"prompt": prompt, "max_tokens": args.stream_len, "stream": True}):
            if line.startswith(b"data:"):
                times.append(time.monotonic())

    def prompt():
        numbers = random.Random(1)
        ids = [numbers.randrange(100, 1000) for _ in range(args.prompt_len)]
        ask(port, {"prompt": ids, "max_tokens": 1}).read()
        end.set()

    begin_thread(stream)
    deadline = time.monotonic() + args.seconds
    while len(times) < 20 and not errors:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the stream had {len(times)} chunks after {args.seconds} s")
        time.sleep(0.01)
    begin = time.monotonic()
    begin_thread(prompt)
    ended = end.wait(args.seconds)
    if errors:
        raise errors[0]
    return times, begin, time.monotonic(), ended


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--prompt-len", type=int, default=32000)
    parser.add_argument("--stream-len", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=120, help="of the stream's beginning and of the prompt, at most")
    args, flags = parser.parse_known_args()
    server, port = start(args.binary, args.model, flags)
    try:
        times, begin, end, ended = measure(port, args)
    finally:
        server.kill()
    points = [begin, *(t for t in times if begin < t < end), end]
    halts = sorted(b - a for a, b in zip(points, points[1:]))
    at = lambda share: halts[min(len(halts) - 1, int(share * len(halts)))]
    print(f"prompt of {args.prompt_len} tokens: {'computed' if ended else 'not done'} after {end - begin:.2f} s; {len(halts)} halts: "
          f"median {at(0.5):.3f}, p90 {at(0.9):.3f}, p99 {at(0.99):.3f}, longest {halts[-1]:.3f} s")


if __name__ == "__main__":
    main()
