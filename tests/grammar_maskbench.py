#!/usr/bin/env python3
"""The schemas of MaskBench: enough of them are taken, and their instances are judged rightly.

MaskBench is looked for in NANOVLLM_SHARED, grammar_bench beside the folder NANOVLLM_BIN. Of the schemas 89% have to be taken, of
their valid instances 99.5%, and an invalid one only where branches of oneOf overlap or a format is not enforced; where a mask and
the automaton differ, grammar_bench ends. Exit status 1 and what differs otherwise, 77 (a skipped test) without MaskBench.
usage: grammar_maskbench.py [--count N]   (of N schemas that lie evenly; 0, all of them, takes minutes)
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import grammar_compare  # noqa: E402

SHARED = pathlib.Path(os.environ.get("NANOVLLM_SHARED", ROOT.parent / "shared"))
ENFORCED = {"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}


def may_be_weaker(schema):
    text = json.dumps(schema)
    return '"oneOf"' in text or not set(re.findall(r'"format": "([^"]*)"', text)) <= ENFORCED


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=400)
    arguments = parser.parse_args()
    archive_path = SHARED / "data/maskbench.tar.xz"
    if not archive_path.exists():
        print(f"SKIPPED: GrammarMaskbench needs {archive_path}")
        sys.exit(77)
    program = pathlib.Path(os.environ.get("NANOVLLM_BIN", ROOT / "build/tests")).parent / "bench/grammar_bench"
    with tempfile.TemporaryDirectory() as folder:
        schemas = pathlib.Path(folder) / "schemas.jsonl"
        with tarfile.open(archive_path) as archive:
            schemas.write_bytes(archive.extractfile("maskbench/schemas.jsonl").read())
        all_cases = list(grammar_compare.cases(schemas, arguments.count))
        path = pathlib.Path(folder) / "cases.jsonl"
        path.write_text("".join(json.dumps(case) + "\n" for case in all_cases), encoding="utf-8")
        run = subprocess.run([program, ROOT / "tests/data/tokenizers/qwen3", path, "--refused"], capture_output=True, text=True,
                             errors="replace")
    if run.returncode:
        sys.exit(f"grammar_bench: exit status {run.returncode}: {run.stderr}")
    *lines, last = run.stdout.rstrip("\n").split("\n")
    result = json.loads(last)
    by_name = {case["name"]: json.loads(case["schema"]) for case in all_cases}
    wrong = [line for line in lines if ": takes an invalid instance: " in line and not may_be_weaker(by_name[line.split(": ")[0]])]
    grammar_compare.row("nanovllm", result)
    print("\n".join(wrong))
    faults = [f"{len(wrong)} invalid instances are taken"] if wrong else []
    if result["schemas"] < len(all_cases) or result["valid"] < len(all_cases) / 2:
        faults.append("there are too few schemas or instances")
    if result["taken"] < 0.89 * result["schemas"]:
        faults.append("fewer than 89% of the schemas are taken")
    if result["valid_taken"] < 0.995 * result["valid"]:
        faults.append("fewer than 99.5% of the valid instances are taken")
    sys.exit("; ".join(faults) or 0)


if __name__ == "__main__":
    main()
