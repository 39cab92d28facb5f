#!/usr/bin/env python3
"""Compares our chat templates with Jinja2, set up as Hugging Face transformers sets it up.

chat_template_driver is looked for in the folder NANOVLLM_BIN, the archive in NANOVLLM_SHARED. Every template and every snippet is rendered with many generated
conversations by both; output must be identical, and where Jinja2 raises we must fail for the same reason: with its words, or with those of ours that MEANINGS
has for its kind of error. Snippets may be refused as not supported. Exit status 1 and what differs
otherwise, 77 (a skipped test) when Jinja2 is not installed. Templates come from data/chat-templates.tar.xz, or, where that is
not there, from what tests/data/chat_templates has of it, and from chat_template_cases.py. usage: chat_template_oracle.py [--every N]
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.runtime
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("SKIPPED: ChatTemplateOracle needs the Python package jinja2 (python3-jinja2)")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import chat_template_cases as cases  # noqa: E402

# What we may say where Jinja2 or Python raises such an error and says it in other words.
SYNTAX = r"expected token|unexpected |Expected an expression|Unexpected end of template|Encountered unknown tag|can't assign to "
OPERANDS = (r"unsupported operand types|not supported between|bad operand type|has no length|is not (?:iterable|callable|reversible)|can't be sliced|"
            r"requires a string on its left|slice indices must be|\w+\(\) (?:takes (?:a|an|at most|no) |misses the argument|got multiple values for)")
MEANINGS = {kind: re.compile(pattern) for kind, pattern in {
    "TemplateSyntaxError": SYNTAX + r"|an integer can't begin|\\x needs 2|is not callable",
    "SyntaxError": SYNTAX + r"|outside of a loop|duplicate argument|keyword argument repeated",
    # A filter that does not exist: Jinja2 says so before it renders, we where it is reached, if nothing else fails before.
    "TemplateAssertionError": SYNTAX + "|" + OPERANDS + r"|No (?:filter|test) named|is undefined|has no attribute|JSON serializable|range\(\) arg|Range too big|"
                              r"^no$|You can only sort by|map requires a filter|Unexpected keyword|Missing parameter",
    "TypeError": OPERANDS,
    "AttributeError": OPERANDS,
    "FilterArgumentError": OPERANDS,
    "ZeroDivisionError": r"division by zero",
    "SecurityError": r"has no attribute|private in a namespace",  # a method that is not there can't be called
    "ValueError": r"values to unpack|has no attribute 'index'",
    "UnicodeEncodeError": r"\\u needs 4",
    "RecursionError": r"nest deeper than the \d+ levels allowed",
}.items()}
NOW = 1752148800  # 2025-07-10 12:00:00 UTC


class Generation(jinja2.ext.Extension):
    """{% generation %}: its body as it is, in a scope like that of a call block."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(lineno)

    def _render(self, caller):
        return caller()


class Environment(ImmutableSandboxedEnvironment):
    """With the sandbox of Jinja2 3.1.6, which also forbids list.pop and list.clear."""

    def is_safe_attribute(self, obj, attr, value):
        if isinstance(obj, list) and attr in ("pop", "clear"):
            return False
        return super().is_safe_attribute(obj, attr, value)


def check_name(name):
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError("private name")


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


class TemplateDict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return datetime.datetime.fromtimestamp(NOW).strftime(format)


def make_environment():
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    environment.globals["dict"] = TemplateDict()
    environment.globals["namespace"] = Namespace
    return environment


def variables_of(request):
    """What a template is given of a request; what ChatTemplate makes of messages before is tested elsewhere."""
    if "messages" not in request:
        return request["variables"]
    return {"documents": None, **request["kwargs"], "messages": request["messages"], "tools": request["tools"],
            "add_generation_prompt": request["add_generation_prompt"]}


def fail_alike(error, ours):
    """Whether our sentence, behind its place in the template, means what was raised."""
    kind, message = error.split(": ", 1)
    place = re.match(r"chat template, line \d+, column \d+: ", ours)
    if place is None:
        return False
    ours = ours[place.end():]
    return ours == message.replace("\n", "\\n") or (kind in MEANINGS and MEANINGS[kind].search(ours) is not None)


class Oracle:
    def __init__(self):
        self.environment = make_environment()
        self.compiled = {}

    def render(self, request):
        """The output, or None where Jinja2 raises."""
        source = request["template"]
        if source not in self.compiled:
            try:
                self.compiled[source] = self.environment.from_string(source)
            except Exception as error:  # whatever Jinja2 or Python itself raises
                self.compiled[source] = error
        template = self.compiled[source]
        if isinstance(template, Exception):
            return None, f"{type(template).__name__}: {template}"
        try:
            output = template.render(variables_of(request))
            output.encode("utf-8")
            return output, None
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"


def run_driver(driver, requests):
    indices = {}
    lines = [json.dumps({**request, "template": indices.setdefault(request["template"], len(indices))}) for request in requests]
    with tempfile.NamedTemporaryFile("w+", suffix=".jsonl") as file:
        file.write("\n".join([json.dumps(list(indices)), *lines]) + "\n")
        file.flush()
        with open(file.name) as stdin:
            done = subprocess.run([driver], stdin=stdin, capture_output=True, check=False)
    if done.returncode != 0:
        print(f"the driver ended with {done.returncode} after {len(done.stdout.splitlines())} of {len(requests)} lines")
        print(done.stderr.decode(errors="replace")[-2000:])
        sys.exit(1)
    return [json.loads(line) for line in done.stdout.splitlines()]


def collect(shared, every):
    """(name, request) for everything that is compared."""
    requests, conversations = [], []
    templates = dict(cases.TEMPLATES)
    snippets = [(f"own snippet {index}", source, {}) for index, source in enumerate(cases.SNIPPETS)]
    archive = shared / "data" / "chat-templates.tar.xz"
    with tempfile.TemporaryDirectory() as unpacked:
        folder = pathlib.Path(__file__).parent / "data" / "chat_templates"
        if archive.exists():
            folder = pathlib.Path(unpacked)
            with tarfile.open(archive) as tar:
                tar.extractall(folder)
        else:
            print(f"SKIPPED in part: {archive} is not there; of published templates only those of {folder} are compared")
        for path in sorted(folder.rglob("*.jinja")):
            templates[path.name] = path.read_text(encoding="utf-8")
        vectors = json.loads(next(folder.rglob("chat_template_vectors.json")).read_text(encoding="utf-8"))
        for group in ("default_templates", "custom_templates"):
            for name, vector in vectors[group].items():
                templates[name] = vector["chat_template"]
                requests.append((name + " (its own data)",
                                 {"template": vector["chat_template"], "variables": vector["data"]}))
        for vector in json.loads(next(folder.rglob("jinja_syntax_vectors.json")).read_text(encoding="utf-8")):
            if not vector["has_function"]:
                snippets.append((vector["name"], vector["template"], vector["context"]))
    for name, source, variables in snippets:
        requests.append((name, {"template": source, "variables": {**cases.VARIABLES, **variables}}))
    for name, source in templates.items():
        for case, conversation in cases.conversations():
            conversations.append((f"{name} with {case}", {"template": source, "variables": variables_of(conversation)}))
    requests += conversations[::every]
    for _, request in requests:
        request["now"] = NOW
    return requests


def show(expected, actual):
    """Both from shortly before where they part."""
    start = max(0, len(os.path.commonprefix([expected, actual])) - 60)
    print(f"    Jinja2: {expected[start:start + 300]!r}\n    ours:   {actual[start:start + 300]!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1,
                        help="of all templates with all conversations, compare each Nth (default: 1)")
    options = parser.parse_args()
    requests = collect(pathlib.Path(os.environ["NANOVLLM_SHARED"]), options.every)
    driver = pathlib.Path(os.environ["NANOVLLM_BIN"]) / "chat_template_driver"
    responses = run_driver(driver, [request for _, request in requests])
    oracle = Oracle()
    different = raised = addresses = refused = 0
    for (name, request), response in zip(requests, responses):
        expected, error = oracle.render(request)
        raised += expected is None
        if expected is not None and response.get("output") == expected:
            continue
        if expected is None and "error" in response and fail_alike(error, response["error"]):
            continue
        # What Python prints with its address is different in every run, so that no prompt can have it.
        if expected is not None and re.search(r" at 0x[0-9a-f]+>", expected):
            addresses += 1
            continue
        is_snippet = " with " not in name and "(its own data)" not in name
        if is_snippet and "is not supported" in response.get("error", ""):
            refused += 1
            continue
        different += 1
        if different <= int(os.environ.get("SHOW", "20")):
            print(f"--- {name}")
            show(error if expected is None else expected, response.get("output", response.get("error")))
            if len(request["template"]) < 300:
                print(f"    template: {request['template']!r}")
    print(f"{len(requests)} renderings compared ({raised} of which Jinja2 refuses, {addresses} with addresses, "
          f"{refused} are not supported here), "
          f"{different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
