#!/usr/bin/env python3
"""JSON Schema's own test suite, drafts 7 and 2020-12, against our grammars.

usage: grammar_suite.py JSONSCHEMA_SDIST [--valid]

The suite is in the source package of PyPI's jsonschema (pip download --no-deps --no-binary jsonschema jsonschema). A schema is
refused, or what it does not allow is not taken; what it allows is taken but for what the grammar narrows: the order of members, a
number's spelling, how deep references go. grammar_driver is looked for in the folder NANOVLLM_BIN. Prints how many of each file
are refused and taken, with --valid each valid instance that is not; exit status 1 when an invalid one is taken.
"""
import collections
import json
import sys
import tarfile

from grammar_oracle import Driver

# Files of oneOf: it is taken for anyOf, and the log says so.
OVERLAPS = {"oneOf"}


def suite(path):
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            parts = member.name.split("/")
            if parts[1:3] != ["json", "tests"] or parts[3] not in ("draft7", "draft2020-12") or len(parts) != 5 or not parts[4].endswith(".json"):
                continue
            yield parts[3], parts[4][:-5], json.load(archive.extractfile(member))


def main():
    if len(sys.argv) < 2:
        print("SKIPPED: GrammarSuite needs the source package of jsonschema as an argument")
        sys.exit(77)
    driver = Driver()
    failures = 0
    for draft, keyword, groups in suite(sys.argv[1]):
        counts = collections.Counter()
        reasons = collections.Counter()
        for group in groups:
            texts = [json.dumps(test["data"], ensure_ascii=False) for test in group["tests"]]
            answer = driver.ask(kind="json", grammar=json.dumps(group["schema"]), texts=texts)
            if "error" in answer:
                if "no text fits" in answer["error"] and not any(test["valid"] for test in group["tests"]):
                    counts["unsatisfiable"] += 1
                else:
                    counts["refused"] += 1
                    reasons[answer["error"].rpartition(": ")[2][:60]] += 1
                continue
            counts["schemas"] += 1
            for test, text, taken in zip(group["tests"], texts, answer["accepted"]):
                counts[f"{'valid' if test['valid'] else 'invalid'} {'taken' if taken else 'refused'}"] += 1
                if taken and not test["valid"] and keyword not in OVERLAPS:
                    failures += 1
                    print(f"TAKEN THOUGH INVALID: {draft} {keyword}: {group['description']}: {json.dumps(group['schema'])[:300]}: {text[:100]}")
                if not taken and test["valid"] and "--valid" in sys.argv:
                    print(f"refused though valid: {draft} {keyword}: {json.dumps(group['schema'])[:200]}: {text[:100]}")
        print(f"{draft:13} {keyword:25}", dict(counts), dict(reasons) or "")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
