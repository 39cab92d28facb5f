#!/usr/bin/env python3
"""Lines of code by part, of what git tracks: without comments, blank lines and tests. A part over its budget fails.

usage: count_lines.py [--files]      --files: also each file, the longest first
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Part, budget, and where its files begin; a file belongs to the first part that takes it. Those without a budget of their
# own share CORE_BUDGET. A budget is what the design allows or, where it says so, a little above what is there today: to
# raise it takes a reason.
PARTS = [
    ("core: engine", None, r"src/engine/"),
    ("core: runner", None, r"src/runner/"),
    ("core: models", None, r"src/models/"),
    ("core: ops", None, r"src/ops/"),
    ("model families", 600, "-"),  # ten of FAMILY_BUDGET
    ("api, public headers", 850, r"include/|src/api/"),  # today's
    ("base", 400, r"src/base/|src/backend/[a-z_]+\."),  # today's
    ("files of models", 3750, r"src/io/"),  # today's
    ("chat templates", 3900, r"src/text/(?:jinja/|chat_template)"),
    ("tokenizers", 5100, r"src/text/"),
    ("cpu", 4700 + 500, r"src/backend/cpu/"),  # and what further families may take
    ("cuda", 8650 + 1000, r"src/backend/cuda/"),  # today's (8,500 and 900 allowed), likewise
    ("server and page", 6400, r"src/server/"),  # today's; the design allows 4,500
    ("hub", 1185, r"src/hub/"),  # today's; the design allows 900
    ("python", 1255, r"python/|src/python/"),  # today's; the design allows 1,200
    ("command line", 4400, r"src/cli/"),  # today's
    ("benchmarks", 3310, r"bench/"),  # today's
    ("scripts and tools", 3000, r"scripts/|tools/"),  # today's
]
CORE_BUDGET = 5300  # what can be read in an afternoon
FAMILY_BUDGET = 60  # of one family's file

CODE = re.compile(r".*\.(h|cc|cu|cuh|py|sh|js|css|html)$")
# Tests, and what only they link: fakes, and the ops' scalar reference.
TESTS = re.compile(r"(^|/)(tests|fuzz)/|(_test|_testing|_test_support|_cases|/testing|/fake_\w+|ops/reference\w*)\.\w+$")

# What a comment, or something that may look like one, begins with; strings are taken as they are.
C_TOKENS = re.compile(r'R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
HTML_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
PYTHON_TOKENS = re.compile(r'^[ \t]*[rR]?("""|\'\'\').*?\1[ \t]*$|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*', re.DOTALL | re.MULTILINE)


def without_comments(path, text):
    if path.endswith(".html"):
        return HTML_COMMENT.sub("", text)
    if path.endswith(".sh"):
        return re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    if path.endswith(".py"):
        is_comment = lambda match: match.group(1) or match.group(0).startswith("#")  # noqa: E731
        return PYTHON_TOKENS.sub(lambda match: "" if is_comment(match) else match.group(0), text)
    return C_TOKENS.sub(lambda match: "" if match.group(0).startswith(("//", "/*")) else match.group(0), text)


def count_lines(path, text):
    return sum(1 for line in without_comments(path, text).splitlines() if line.strip())


def is_family(path):
    """A family of models is one source without a header of its own."""
    return re.match(r"src/models/(?!registry)\w+\.cc$", path) and not (ROOT / path).with_suffix(".h").exists()


def part_of(path):
    if is_family(path):
        return "model families"
    return next((name for name, _, pattern in PARTS if re.match(pattern, path)), None)


def count_parts():
    """{part: {path: lines}} of the files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    parts = {name: {} for name, _, _ in PARTS}
    for path in listed.split("\0"):
        part = part_of(path)
        if part is None or not CODE.match(path) or TESTS.search(path) or not (ROOT / path).exists():
            continue
        parts[part][path] = count_lines(path, (ROOT / path).read_text(encoding="utf-8"))
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true")
    options = parser.parse_args()
    parts = count_parts()
    too_long = []

    def show(name, lines, budget):
        over = budget is not None and lines > budget
        if over:
            too_long.append(f"{name} has {lines} lines of code, {lines - budget} more than its budget of {budget}")
        print(f"{name:24}{lines:8,}{'' if budget is None else f' of {budget:,}':>12}{'  TOO LONG' if over else ''}")

    for name, budget, _ in PARTS:
        show(name, sum(parts[name].values()), budget)
        if options.files:
            for path, lines in sorted(parts[name].items(), key=lambda item: -item[1]):
                print(f"    {lines:6,}  {path}")
    core = sum(sum(files.values()) for name, files in parts.items() if name.startswith("core: "))
    show("core together", core, CORE_BUDGET)
    for path, lines in parts["model families"].items():
        if lines > FAMILY_BUDGET:
            too_long.append(f"{path} has {lines} lines of code; a family's file may have {FAMILY_BUDGET}")
    print(f"{'all':24}{sum(sum(files.values()) for files in parts.values()):8,}")
    for sentence in too_long:
        print(f"count_lines.py: {sentence}", file=sys.stderr)
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
