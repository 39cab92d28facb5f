#!/usr/bin/env python3
"""The tokenizer against Hugging Face's `tokenizers` package, one thread each, in one run.

usage: tokenizer_bench.py TOKENIZER_BENCH MODEL_DIR... [--text FILE]... [--pathological]

TOKENIZER_BENCH is the program built from bench/tokenizer_bench.cc. Without --text, source code of
this repository is encoded. Every text is measured whole and cut into pieces of the size of a chat
message. Times are those of the processor, which other programs do not change much, the best of
several runs; the numbers of tokens are compared too.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers  # noqa: E402  (reads the environment when imported)


PIECE = 2000  # characters


def best_time(run):
    best, total, count = 1e9, 0.0, 0
    while count < 3 or (total < 1 and count < 20):
        start = time.process_time()
        run()
        seconds = time.process_time() - start
        best, total, count = min(best, seconds), total + seconds, count + 1
        if total > 10:
            break
    return best


def pathological():
    """A megabyte each of what makes careless tokenizers quadratic."""
    mega = 1 << 20
    return {
        "one letter": "a" * mega,
        "spaces": " " * mega,
        "newlines": "\n" * mega,
        "emoji": "\U0001f600" * (mega // 4),
        "combining marks": "e" + "\u0323\u0301" * (mega // 4),
        "digits": "7" * mega,
        "apostrophes": "'" * mega,
    }


def source_code():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src")
    parts = []
    for folder, _, names in sorted(os.walk(root)):
        for name in sorted(names):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                parts.append(file.read())
    return "".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bench")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("--pathological", action="store_true")
    options = parser.parse_args()

    texts = {}
    for path in options.text:
        with open(path, encoding="utf-8", newline="") as file:
            texts[os.path.basename(path)] = file.read()
    if options.pathological:
        texts.update(pathological())
    if not texts:
        texts["source code"] = source_code()

    cases = {}  # name -> texts that are encoded one after the other
    for name, text in texts.items():
        cases[name] = [text]
        cases[f"{name}, in pieces"] = [text[i:i + PIECE] for i in range(0, len(text), PIECE)]
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for index, (name, parts) in enumerate(cases.items()):
            paths[name] = os.path.join(folder, str(index))
            with open(paths[name], "w", encoding="utf-8", newline="") as file:
                file.write("\0".join(parts))
        for model in options.models:
            compare(options.bench, model, cases, paths)


def compare(bench, model, cases, paths):
    output = subprocess.run([bench, model, *paths.values()], check=True, capture_output=True)
    ours = json.loads(output.stdout)
    path = os.path.join(model, "tokenizer.json")
    peer_load = best_time(lambda: tokenizers.Tokenizer.from_file(path))
    peer = tokenizers.Tokenizer.from_file(path)
    print(f"{model}: load {ours['load'] * 1e3:.1f} ms, tokenizers {peer_load * 1e3:.1f} ms")
    print(f"  {'text':36}{'MB':>7}  {'encode MB/s':>24}  {'decode MB/s':>24}")
    for name, texts in cases.items():
        mine = ours[paths[name]]
        ids = [encoding.ids for encoding in peer.encode_batch_fast(texts, add_special_tokens=False)]
        if sum(map(len, ids)) != mine["tokens"]:
            sys.exit(f"{name}: {mine['tokens']} tokens, but tokenizers has {sum(map(len, ids))}")
        encode = best_time(lambda: peer.encode_batch_fast(texts, add_special_tokens=False))
        decode = best_time(lambda: peer.decode_batch(ids, skip_special_tokens=False))
        mega = mine["bytes"] / 1e6

        def rates(seconds, peer_seconds):
            return (f"{mega / seconds:8.1f} / {mega / peer_seconds:6.1f} "
                    f"{peer_seconds / seconds:5.1f}x")

        print(f"  {name:36}{mega:7.2f}  {rates(mine['encode'], encode):>24}"
              f"  {rates(mine['decode'], decode):>24}")
    print("  (ours / tokenizers, and how many times faster)")


if __name__ == "__main__":
    main()
