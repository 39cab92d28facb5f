#!/usr/bin/env python3
"""Reports arguments of `co_await f(...)` that g++ 12 destroys twice.

They are aggregates in braces, conditional expressions and lambdas that capture by value; what has a name is safe.
Usage: check_awaits.py FILE...
"""
import re
import sys

TWICE = re.compile(r"co_await\b[^;{}]*(?:[(,]\s*(?:\w*\{|\[(?!&?\]|this\]))|\([^;{}]*\?)")
OTHERS = re.compile(r'//.*|"(?:[^"\\\n]|\\.)*"')  # comments and strings

found = 0
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        text = OTHERS.sub('""', file.read())
    for match in TWICE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        print(f"{path}:{line}: name the argument before the co_await, g++ 12 destroys it twice")
        found = 1
sys.exit(found)
