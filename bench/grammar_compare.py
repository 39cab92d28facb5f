#!/usr/bin/env python3
"""Grammars against llguidance on the schemas of MaskBench, one thread each, in one run.

usage: grammar_compare.py GRAMMAR_BENCH MODEL_DIR SCHEMAS [--count N] [--refused] [--alone]

GRAMMAR_BENCH is the program built from bench/grammar_bench.cc; MODEL_DIR has the tokenizer; SCHEMAS is
MaskBench's schemas.jsonl, of which N (400) that lie evenly are taken, 0 for all. Needs the package
llguidance, unless --alone. Both enforce the schema's order of members:
an instance is taken when it is in the one or the other order. Times are microseconds of the thread.
"""
import argparse
import json
import os
import subprocess
import tempfile
import time


def parts(schema, root, depth=0):
    """The objects that speak of the same value as a schema, in the document's order."""
    if not isinstance(schema, dict) or depth > 20:
        return
    is_given = False
    for keyword, value in schema.items():
        if keyword == "properties":
            is_given = True
            yield schema
        elif keyword == "$ref" and isinstance(value, str) and value.startswith("#"):
            target = root
            for token in value[1:].split("/")[1:]:
                token = token.replace("~1", "/").replace("~0", "~")
                target = target.get(token) if isinstance(target, dict) else None
            yield from parts(target, root, depth + 1)
        elif keyword in ("allOf", "anyOf", "oneOf") and isinstance(value, list):
            for part in value:
                yield from parts(part, root, depth + 1)
    if not is_given:
        yield schema


def ordered(data, schemas, root):
    """The instance with members in the order in which the schemas name them."""
    everything = [part for schema in schemas for part in parts(schema, root)]
    if isinstance(data, list):
        below = [part[key] for part in everything for key in ("items", "additionalItems") if isinstance(part.get(key), dict)]
        lists = [part[key] for part in everything for key in ("items", "prefixItems") if isinstance(part.get(key), list)]
        return [ordered(value, below + [one[i] for one in lists if i < len(one)], root) for i, value in enumerate(data)]
    if not isinstance(data, dict):
        return data
    places, below = {}, {}
    for part in everything:
        properties = part.get("properties")
        for name, schema in (properties if isinstance(properties, dict) else {}).items():
            places.setdefault(name, len(places))
            below.setdefault(name, []).append(schema)
        for name in part["required"] if isinstance(part.get("required"), list) else []:
            places.setdefault(name, 100000 + len(places))
        others = list((part.get("patternProperties") or {}).values()) + [part.get("additionalProperties")]
        for name in data:
            below.setdefault(name, []).extend(other for other in others if isinstance(other, dict))
    names = sorted(data, key=lambda name: places.get(name, 1000000))
    return {name: ordered(data[name], below.get(name, []), root) for name in names}


def texts_of(data, schema):
    """The instance as it is, and where that is another text in the schema's order."""
    texts = [json.dumps(data, ensure_ascii=False), json.dumps(ordered(data, [schema], schema), ensure_ascii=False)]
    return texts if texts[0] != texts[1] else texts[:1]


def cases(path, count):
    with open(path, encoding="utf-8") as file:
        lines = list(file)
    step = max(1, len(lines) // count) if count else 1
    for line in lines[::step][: count or None]:
        case = json.loads(line)
        yield {
            "name": case["name"],
            "schema": json.dumps(case["schema"], ensure_ascii=False),
            "tests": [{"valid": test["valid"], "texts": texts_of(test["data"], case["schema"])} for test in case["tests"]],
        }


def summary(times):
    if not times:
        return None
    times.sort()

    def at(share):
        return times[int(share * (len(times) - 1))]

    return {"count": len(times), "mean": sum(times) / len(times), "median": at(0.5), "p99": at(0.99), "max": times[-1]}


def run_llguidance(model, all_cases):
    import llguidance
    import numpy

    with open(os.path.join(model, "tokenizer.json"), encoding="utf-8") as file:
        text = file.read()
    with open(os.path.join(model, "tokenizer_config.json"), encoding="utf-8") as file:
        eos = json.load(file)["eos_token"]
    ids = {token["content"]: token["id"] for token in json.loads(text)["added_tokens"]}
    tokenizer = llguidance.LLTokenizer(text, eos_token=ids[eos if isinstance(eos, str) else eos["content"]])
    mask = numpy.zeros((tokenizer.vocab_size + 31) // 32, dtype=numpy.int32)

    def make_mask(matcher):
        begin = time.thread_time_ns()
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return (time.thread_time_ns() - begin) / 1e3

    totals = {"schemas": 0, "taken": 0, "valid": 0, "valid_taken": 0, "invalid": 0, "invalid_taken": 0}
    first_masks, masks = [], []
    for case in all_cases:
        totals["schemas"] += 1
        begin = time.thread_time_ns()
        grammar = llguidance.LLMatcher.grammar_from_json_schema(case["schema"])
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        if matcher.is_error():
            continue
        make_mask(matcher)
        first_masks.append((time.thread_time_ns() - begin) / 1e3)
        totals["taken"] += 1
        for test in case["tests"]:
            kind = "valid" if test["valid"] else "invalid"
            totals[kind] += 1
            for text in test["texts"]:
                one = matcher.deep_copy()
                is_taken = True
                for token in tokenizer.tokenize_str(text):
                    masks.append(make_mask(one))
                    if not mask[token // 32] >> (token % 32) & 1 or not one.consume_token(token):
                        is_taken = False
                        break
                if is_taken and one.is_accepting():
                    totals[kind + "_taken"] += 1
                    break
    return {**totals, "first_mask_us": summary(first_masks), "mask_us": summary(masks)}


def row(name, result):
    first, mask = result["first_mask_us"], result["mask_us"]
    print(f"{name:12} taken {result['taken']}/{result['schemas']} ({result['taken'] / result['schemas']:.1%})"
          f"  valid {result['valid_taken']}/{result['valid']} ({result['valid_taken'] / max(1, result['valid']):.2%})"
          f"  invalid taken {result['invalid_taken']}/{result['invalid']}")
    for kind, times in (("mask", mask), ("first mask", first)):
        print(f"  {kind:10} mean {times['mean']:8.1f}  median {times['median']:8.1f}  p99 {times['p99']:9.1f}"
              f"  max {times['max']:9.1f} us  of {times['count']}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("schemas")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--refused", action="store_true", help="print what is refused, and why")
    parser.add_argument("--alone", action="store_true", help="without llguidance")
    arguments = parser.parse_args()
    all_cases = list(cases(arguments.schemas, arguments.count))
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        for case in all_cases:
            file.write(json.dumps(case, ensure_ascii=False) + "\n")
        file.flush()
        command = [arguments.program, arguments.model, file.name] + ["--refused"] * arguments.refused
        output = subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout
    *lines, result = output.rstrip("\n").split("\n")
    print("\n".join(lines), end="\n" if lines else "")
    ours = json.loads(result)
    row("nanovllm", ours)
    print(f"  the slowest mask is one of {ours['slowest_mask']}'s, the slowest first one {ours['slowest_first_mask']}'s;"
          f" a grammar has up to {ours['most_bytes'] / 2**20:.1f} MiB")
    if not arguments.alone:
        row("llguidance", run_llguidance(arguments.model, all_cases))


if __name__ == "__main__":
    main()
