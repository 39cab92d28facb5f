#!/usr/bin/env python3
"""Lines of code by part, of what git tracks: without comments, blank lines and tests.

usage: count_lines.py [--files] [--since REV]
"""
import argparse
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
FAMILIES = "model families"

# Part, and where its files begin; a file belongs to the first part that takes it.
PARTS = [
    ("engine", r"src/engine/"),
    ("runner", r"src/runner/"),
    ("models", r"src/models/"),
    ("ops", r"src/ops/"),
    (FAMILIES, "-"),  # see is_family
    ("api, public headers", r"include/|src/api/"),
    ("base", r"src/base/|src/backend/[a-z_]+\."),
    ("files of models", r"src/io/"),
    ("chat templates", r"src/text/(?:jinja/|chat_template)"),
    ("tokenizers", r"src/text/"),
    ("grammars", r"src/grammar/"),
    ("cpu", r"src/backend/cpu/"),
    ("cuda", r"src/backend/cuda/"),
    ("server and page", r"src/server/"),
    ("hub", r"src/hub/"),
    ("python", r"python/|src/python/"),
    ("command line", r"src/cli/"),
    ("benchmarks", r"bench/"),
    ("scripts and tools", r"scripts/|tools/"),
]
AFTERNOON = ("engine", "runner", "models", "ops")  # the path that is read in one

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


def git(*arguments, **more):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True, **more).stdout


def read_tree():
    """{path: text} of the files that git tracks, as they are now."""
    paths = git("ls-files", "-z").decode().split("\0")
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths if is_code(path) and (ROOT / path).exists()}


def read_revision(revision):
    """{path: text} of a revision's files."""
    paths = [path for path in git("ls-tree", "-rz", "--name-only", revision).decode().split("\0") if is_code(path)]
    rest = git("cat-file", "--batch", input="".join(f"{revision}:{path}\n" for path in paths).encode())
    files = {}
    for path in paths:  # each behind a line that ends with its size
        head, rest = rest.split(b"\n", 1)
        size = int(head.split()[-1])
        files[path] = rest[:size].decode("utf-8")
        rest = rest[size + 1 :]
    return files


def is_code(path):
    return CODE.match(path) and not TESTS.search(path)


def is_family(path, paths):
    """A family of models is one source without a header of its own."""
    return re.match(r"src/models/(?!registry)\w+\.cc$", path) and path.removesuffix("cc") + "h" not in paths


def part_of(path, paths):
    if is_family(path, paths):
        return FAMILIES
    return next((name for name, pattern in PARTS if re.match(pattern, path)), None)


def count_parts(files):
    """{part: {path: lines}}"""
    parts = {name: {} for name, _ in PARTS}
    for path, text in files.items():
        part = part_of(path, files)
        if part is not None:
            parts[part][path] = count_lines(path, text)
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="also each file, the longest first")
    parser.add_argument("--since", metavar="REV", help="also what was added since this revision")
    options = parser.parse_args()
    parts = count_parts(read_tree())
    before = count_parts(read_revision(options.since)) if options.since else None

    def show(name, members):
        lines = sum(sum(parts[member].values()) for member in members)
        line = f"{name:24}{lines:8,}"
        if before is not None:
            line += f"{lines - sum(sum(before[member].values()) for member in members):+8,}"
        print(line)

    for name, _ in PARTS:
        show(name, [name])
        if options.files:
            for path, lines in sorted(parts[name].items(), key=lambda item: -item[1]):
                print(f"    {lines:6,}  {path}")
    show("all", parts)
    show("read in an afternoon", AFTERNOON)
    print(f"    ({', '.join(AFTERNOON)})")


if __name__ == "__main__":
    main()
