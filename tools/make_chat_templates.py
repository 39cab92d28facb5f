#!/usr/bin/env python3
"""Writes tests/data/chat_templates/expected.json: what Jinja2 (3.1, with transformers' settings) makes of the templates.

"cases" are the variables of some conversations; "templates" has for each file what is rendered, null where it raises.
"""
import json
import os
import pathlib
import sys
import time

os.environ["TZ"] = "UTC"
time.tzset()
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import chat_template_cases as cases  # noqa: E402
import chat_template_oracle as oracle  # noqa: E402

NAMES = ["system and turns, a prompt", "two calls and results, tools", "reasoning, thinking", "content parts, no prompt",
         "a tool call with an object, no thinking and tools", "unicode, documents"]


def main():
    conversations = dict(cases.conversations())
    variables = [oracle.variables_of(conversations[name]) for name in NAMES]
    folder = ROOT / "tests" / "data" / "chat_templates"
    jinja2 = oracle.Oracle()
    expected = {}
    for path in sorted(folder.glob("*.jinja")):
        requests = [{"template": path.read_text(encoding="utf-8"), "variables": given} for given in variables]
        expected[path.name] = [jinja2.render(request)[0] for request in requests]
    content = {"cases": [{"name": name, "variables": given} for name, given in zip(NAMES, variables)],
               "templates": expected}
    (folder / "expected.json").write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
