#!/usr/bin/env python3
"""Reports names that a file brings into scope and does not use: `using a::b;` and `namespace a = b;`.

clang-tidy has checks for both, but not where files are merged into one translation unit.
Usage: check_usings.py FILE...
"""
import re
import sys

NAMES = re.compile(r"^\s*(?:using\s+[\w:]+::(\w+)|namespace\s+(\w+)\s*=[^;]+);", re.MULTILINE)

found = 0
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for match in NAMES.finditer(text):
        name = match[1] or match[2]
        if len(re.findall(rf"\b{name}\b", text)) < 2:
            line = text.count("\n", 0, match.start(1) if match[1] else match.start(2)) + 1
            print(f"{path}:{line}: {name} is not used")
            found = 1
sys.exit(found)
