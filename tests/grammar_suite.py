#!/usr/bin/env python3
"""JSON Schema's own test suite, drafts 7 and 2020-12, against our grammars, and against what docs/reference.md says of it.

usage: grammar_suite.py [JSONSCHEMA_SDIST] [--valid] [--table]

The suite is in the source package of PyPI's jsonschema (pip download --no-deps --no-binary jsonschema jsonschema==4.26.0), which
NANOVLLM_JSON_SCHEMA_SUITE may name too; exit status 77 (a skipped test) without one. A schema is refused, or what it does not allow is
not taken. What is refused, and what it allows and is not taken, because the grammar has an order of members, say, is what the table
in docs/reference.md has; --table prints that, --valid each such instance. grammar_driver is looked for in the folder NANOVLLM_BIN.
Exit status 1 where an invalid instance is taken, or the table says something else.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import sys
import tarfile

from grammar_oracle import Driver

DOCUMENT = pathlib.Path(__file__).parent.parent / "docs/reference.md"
DRAFTS = ("draft7", "draft2020-12")
HEAD = "| File of the suite | Refused of draft 7 | of 2020-12 | Valid, not taken, of draft 7 | of 2020-12 |"
# It is taken for anyOf, and the log says so.
OVERLAPS = "oneOf"


def suite(path):
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            parts = member.name.split("/")
            if parts[1:3] == ["json", "tests"] and parts[3] in DRAFTS and len(parts) == 5 and parts[4].endswith(".json"):
                yield parts[3], parts[4][:-5], json.load(archive.extractfile(member))


def is_unsatisfiable(error, group):
    return "can't be satisfied" in error and not any(test["valid"] for test in group["tests"])


def judge(driver, draft, keyword, groups, shows_valid):
    """How many schemas are refused, valid instances not taken, and invalid ones taken."""
    counts = collections.Counter(schemas=len(groups))
    for group in groups:
        texts = [json.dumps(test["data"], ensure_ascii=False) for test in group["tests"]]
        answer = driver.ask(kind="json", grammar=json.dumps(group["schema"]), texts=texts)
        if "error" in answer:
            counts["refused"] += not is_unsatisfiable(answer["error"], group)
            continue
        for test, text, taken in zip(group["tests"], texts, answer["accepted"]):
            counts["valid"] += test["valid"]
            counts["not taken"] += test["valid"] and not taken
            schema = json.dumps(group["schema"])
            if taken and not test["valid"] and keyword == OVERLAPS:
                counts["overlapping"] += 1
            elif taken and not test["valid"]:
                counts["wrong"] += 1
                print(f"TAKEN THOUGH INVALID: {draft} {keyword}: {group['description']}: {schema[:300]}: {text[:100]}")
            if test["valid"] and not taken and shows_valid:
                print(f"not taken though valid: {draft} {keyword}: {schema[:200]}: {text[:100]}")
    return counts


def row(keyword, by_draft):
    """Empty where nothing is refused."""
    cells = []
    for what, of in ("refused", "schemas"), ("not taken", "valid"):
        for counts in (by_draft.get(draft, {}) for draft in DRAFTS):
            cells.append(f"{counts[what]} of {counts[of]}" if counts.get(what) else "")
    return f"| `{keyword}` | {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |") if any(cells) else ""


def documented(text):
    lines = text.splitlines()
    if HEAD not in lines:
        sys.exit(f"{DOCUMENT} has no table of what is refused of the suite")
    begin = lines.index(HEAD) + 2
    end = next(i for i in range(begin, len(lines) + 1) if i == len(lines) or not lines[i].startswith("|"))
    return lines[begin:end]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sdist", nargs="?", default=os.environ.get("NANOVLLM_JSON_SCHEMA_SUITE"))
    parser.add_argument("--valid", action="store_true")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    text = DOCUMENT.read_text(encoding="utf-8")
    wanted = documented(text)
    if not arguments.sdist:
        print("SKIPPED: GrammarSuite needs the source package of jsonschema, which NANOVLLM_JSON_SCHEMA_SUITE names")
        sys.exit(77)
    driver = Driver()
    found = collections.defaultdict(dict)
    for draft, keyword, groups in suite(arguments.sdist):
        found[keyword][draft] = judge(driver, draft, keyword, groups, arguments.valid)
    totals = sum((counts for by_draft in found.values() for counts in by_draft.values()), collections.Counter())
    rows = [line for line in (row(keyword, found[keyword]) for keyword in sorted(found)) if line]
    if arguments.table:
        print(HEAD, "|---" * 5 + "|", *rows, sep="\n")
    print(f"{totals['schemas']} schemas, {totals['refused']} refused; {totals['valid']} valid instances, {totals['not taken']} not taken")
    version = re.search(r"jsonschema-([0-9.]+)\.tar", str(arguments.sdist))
    if f"jsonschema {version.group(1) if version else '?'}" not in text:
        print(f"{DOCUMENT} speaks of another version of the suite than {arguments.sdist}")
    overlapping = [found[OVERLAPS][draft]["overlapping"] for draft in DRAFTS]
    is_told = " ".join(text.split()).count(f"No invalid instance is taken but {overlapping[0]} of each draft's file `{OVERLAPS}`") == 1
    is_told = is_told and len(set(overlapping)) == 1
    if not is_told:
        print(f"the document does not say: {overlapping} invalid instances of {OVERLAPS} are taken")
    for line in wanted:
        if line not in rows:
            print(f"the document says, but is not so: {line}")
    for line in rows:
        if line not in wanted:
            print(f"is so, but the document does not say: {line}")
    if totals["schemas"] < 300:
        sys.exit("there are too few schemas")
    sys.exit(1 if totals["wrong"] or rows != wanted or not is_told else 0)


if __name__ == "__main__":
    main()
