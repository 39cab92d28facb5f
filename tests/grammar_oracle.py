#!/usr/bin/env python3
"""Compares our grammars with those that know: Python's `re` for regular expressions, jsonschema for JSON Schema.

grammar_driver is looked for in the folder NANOVLLM_BIN, MaskBench in NANOVLLM_SHARED. Random expressions must match what `re`
matches; random walks under the masks of schemas must end in instances that jsonschema accepts. Exit status 1 and what differs
otherwise, 77 (a skipped test) after the expressions when jsonschema is not installed.
usage: grammar_oracle.py [--expressions N] [--schemas N] [--walks N]   (walks of each schema; 500 schemas have 10,000 that end)
"""
import argparse
import decimal
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).parent.parent
SHARED = pathlib.Path(os.environ.get("NANOVLLM_SHARED", ROOT.parent / "shared"))
SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string", "minLength": 2, "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
     "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 4}}, "required": ["name", "tags"], "additionalProperties": False},
    {"$defs": {"node": {"type": "object", "properties": {"value": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
     "required": ["value", "next"]}}, "$ref": "#/$defs/node"},
    {"type": "object", "patternProperties": {"^x-": {"type": "integer"}, "y$": {"type": ["integer", "null"]}}, "additionalProperties": {"type": "boolean"},
     "propertyNames": {"maxLength": 6}},
    {"type": "array", "prefixItems": [{"type": "number", "exclusiveMinimum": -1.5, "maximum": 12.25}, {"const": {"a": [1, "b"]}}], "items": {"type": "boolean"},
     "minItems": 2, "maxItems": 5},
    {"type": "string", "pattern": "^[a-f]{2}(-[0-9]+)*$", "minLength": 3, "maxLength": 12},
    {"allOf": [{"type": "integer", "multipleOf": 7}, {"minimum": -100}, {"maximum": 5000}]},
    {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 3},
    {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "format": "ipv4"}, {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9}]},
    True,
]


class Driver:
    def __init__(self):
        program = pathlib.Path(os.environ.get("NANOVLLM_BIN", ROOT / "build")) / "grammar_driver"
        if not program.exists():
            program = program.parent / "tests" / "grammar_driver"
        self.process = subprocess.Popen([program, ROOT / "models/demo"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"grammar_driver died of {request}")
        return json.loads(line)


def expression(rng, depth):
    kind = rng.randrange(9 if depth else 5)
    if kind < 3:
        return rng.choice(["a", "b", "é", "1", r"\d", r"\w", ".", "[ab]", "[^a]", r"\.", "[a-c1-]", r"[\w-]", "😀", r"\x61", r"\S"])
    if kind == 3:
        return rng.choice(["", "ab", "ba"])
    if kind == 4:
        return "(?:" + rng.choice(["^a", "b$", "^", "$"]) + ")" if rng.random() < 0.3 else "a"
    if kind in (5, 6):
        return "".join(expression(rng, depth - 1) for _ in range(rng.randrange(1, 4)))
    if kind == 7:
        return "(" + "|".join(expression(rng, depth - 1) for _ in range(rng.randrange(1, 4))) + ")"
    return "(?:" + expression(rng, depth - 1) + ")" + rng.choice(["*", "+", "?", "{2}", "{1,3}", "{2,}", "{0}", "*?", "+?"])


def nested(rng, depth):
    """Repeats in repeats, most of which may be empty: the expression, and where matches of it that begin at a place of a text end.

    With such ones Python's re may take years."""
    if depth == 0:
        leaf = re.compile(rng.choice(["a", "b", "1", "[ab]", "[ab][1b]", "ab", "(?:[ab]1)"]))
        return leaf.pattern, lambda text, at: {found.end() for found in [leaf.match(text, at)] if found}
    alternatives = []
    for _ in range(rng.choice([1, 1, 2])):
        alternatives.append([nested(rng, depth - 1 if rng.random() < 0.6 else 0) for _ in range(rng.randrange(1, 4))])
    sign, least, most = rng.choice([("*", 0, 99), ("*", 0, 99), ("?", 0, 1), ("+", 1, 99), ("{2}", 2, 2), ("{0,3}", 0, 3), ("{2,}", 2, 99)])

    def once(text, at):
        all_ends = set()
        for parts in alternatives:
            ends = {at}
            for _, match in parts:
                ends = {end for start in ends for end in match(text, start)}
            all_ends |= ends
        return all_ends

    def match(text, at):
        found, ends = {at} if least == 0 else set(), {at}
        for i in range(1, most + 1):
            before, ends = ends, {end for start in ends for end in once(text, start)}
            found |= ends if i >= least else set()
            if i >= least and ends <= found and (not ends or ends == before or i > len(text) + least):
                break
        return found

    return "(?:" + "|".join("".join(part for part, _ in parts) for parts in alternatives) + ")" + sign, match


def near(rng, text):
    """The text with a character more, less or another."""
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(["", "a", "b", "1"]) + text[at + rng.randrange(2) :]


def is_plain(text):
    """Without what Python sees in another way: ends of lines, and white space beyond ASCII."""
    return all(c.isprintable() and c != "\xa0" for c in text)


def check_expressions(driver, count):
    rng = random.Random(5)
    judged = refused = 0
    for i in range(count):
        pattern, match = nested(rng, 3) if i % 3 == 2 else (expression(rng, 3), None)
        texts = ["".join(rng.choice("aab1é😀.-") for _ in range(rng.randrange(7))) for _ in range(15)]
        walks = driver.ask(kind="regex", grammar=pattern, walks=5, seed=i).get("walks", [])
        walks = [text for text in walks if len(text) <= 12 and is_plain(text)]
        texts += walks + [near(rng, text) for text in walks for _ in range(4)]
        answer = driver.ask(kind="regex", grammar=pattern, texts=texts)
        wanted = [len(text) in match(text, 0) if match else re.fullmatch(pattern, text, re.ASCII) is not None for text in texts]
        if "error" in answer:
            # An anchor that is repeated is refused, and what nothing can match.
            if "anchor" not in answer["error"] and not ("no text fits" in answer["error"] and not any(wanted)):
                sys.exit(f"{pattern!r} is refused: {answer['error']}")
            refused += 1
            continue
        for text, ours, theirs in zip(texts, answer["accepted"], wanted):
            if ours != theirs:
                sys.exit(f"{pattern!r} {'takes' if ours else 'refuses'} {text!r}, unlike re")
            judged += 1
    if judged < 10 * count:
        sys.exit(f"only {judged} texts were judged of {count} expressions")
    print(f"{count} expressions, {judged} texts: as re says; {refused} refused")


def shared_schemas(count):
    path = SHARED / "data/maskbench.tar.xz"
    if not path.exists():
        print(f"SKIPPED: GrammarOracle's schemas of MaskBench need {path}")
        return
    with tarfile.open(path) as archive:
        lines = archive.extractfile("maskbench/schemas.jsonl").read().decode().split("\n")[:-1]
    for line in lines[:: max(1, len(lines) // count)]:
        yield json.loads(line)["schema"]


def is_rounding(error):
    """1.13 is a multiple of 0.01, which binary fractions do not show."""
    return error.validator == "multipleOf" and decimal.Decimal(repr(error.instance)) % decimal.Decimal(repr(error.validator_value)) == 0


def is_lower_case(error, checker):
    """RFC 3339 lets `t` and `z` be small, which jsonschema does not know."""
    return error.validator == "format" and checker.conforms(error.instance.upper(), error.validator_value)


def check_walks(driver, schemas, walks):
    import jsonschema

    known = jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers  # of all drafts, "time" is that of draft 3: without an offset
    formats = ["date", "time", "date-time", "ipv4", "ipv6", "uuid", "email"]  # as far as it can
    checker = jsonschema.FormatChecker(formats=[])
    checker.checkers = {name: known[name] for name in formats if name in known}
    taken = ended = walked = 0
    for schema in schemas:
        answer = driver.ask(kind="json", grammar=json.dumps(schema), walks=walks, seed=3)
        if "error" in answer:
            continue
        taken += 1
        try:
            validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema, format_checker=checker)
            validator.check_schema(schema)
        except Exception:  # a schema that is none for jsonschema
            continue
        walked += walks
        for text in answer["walks"]:
            ended += 1
            if text.startswith("dead end behind: "):
                sys.exit(f"{json.dumps(schema)[:2000]}\n{text}")
            value = json.loads(text)
            error = next((error for error in validator.iter_errors(value) if not (is_rounding(error) or is_lower_case(error, checker))), None)
            if error is not None and "oneOf" not in error.absolute_schema_path:
                sys.exit(f"{json.dumps(schema)[:2000]}\nallows {text}\nbut {error.message[:300]}, at {list(error.absolute_schema_path)}")
    print(f"{taken} of {len(schemas)} schemas, {ended} of {walked} walks came to an end: as jsonschema says")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--expressions", type=int, default=2000)
    parser.add_argument("--schemas", type=int, default=0, help="of MaskBench, besides our own")
    parser.add_argument("--walks", type=int, default=20, help="of each schema")
    arguments = parser.parse_args()
    driver = Driver()
    check_expressions(driver, arguments.expressions)
    try:
        import jsonschema  # noqa: F401
    except ImportError:
        print("SKIPPED: GrammarOracle's walks need the Python package jsonschema (python3-jsonschema)")
        sys.exit(77)
    check_walks(driver, SCHEMAS, arguments.walks)
    if arguments.schemas:
        check_walks(driver, list(shared_schemas(arguments.schemas)), arguments.walks)


if __name__ == "__main__":
    main()
