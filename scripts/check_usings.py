#!/usr/bin/env python3
"""Reports names that a file brings into scope and does not use: `using a::b;` and `namespace a = b;`.

clang-tidy has checks for both, but not where files are merged into one translation unit.
Usage: check_usings.py FILE...
"""
import re
import sys

NAMES = re.compile(r"^(?:using\s+[\w:]+::(\w+)|namespace\s+(\w+)\s*=[^;]+);", re.MULTILINE)
# What names no name: comments, strings and included files.
OTHERS = re.compile(r'//.*|"(?:[^"\\\n]|\\.)*"|^\s*#include.*', re.MULTILINE)

found = 0
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        text = OTHERS.sub("", file.read())
    for match in NAMES.finditer(text):
        name = match[1] or match[2]
        if not re.search(rf"(?<![:.\w]){name}\b", text[:match.start()] + text[match.end():]):
            print(f"{path}: {name} is not used")
            found = 1
sys.exit(found)
