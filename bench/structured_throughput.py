#!/usr/bin/env python3
"""What schemas cost a server's throughput: output tokens a second with 20 different ones, and without, in turns.

SCHEMAS is MaskBench's schemas.jsonl, of which 20 that lie evenly are taken, as the items of lists without an end, so that
each answer has as many tokens as one without a schema. --string-len bounds strings that have no bound, so that a random
model comes to their ends; with --fresh schemas are new in each round, and nothing of them is known. Prompts are random
tokens. Further arguments are serve's flags:

  bench/structured_throughput.py build/nanovllm MODEL SCHEMAS --batch 16 --num-threads 2
"""
import argparse
import json
import random
import statistics
import threading
import time

from halts import ask, start

NUM_SCHEMAS = 20


def bounded(schema, string_len):
    """With a bound to strings that have none of their own; 0 = none."""
    if isinstance(schema, list):
        return [bounded(part, string_len) for part in schema]
    if not isinstance(schema, dict) or not string_len:
        return schema
    schema = {key: value if key in ("enum", "const") else bounded(value, string_len) for key, value in schema.items()}
    if schema.get("type") == "string" and not schema.keys() & {"enum", "const", "pattern", "format", "maxLength", "minLength"}:
        schema["maxLength"] = string_len
    return schema


def taken_schemas(port, path, string_len):
    with open(path, encoding="utf-8") as file:
        lines = file.readlines()
    taken = []
    for line in lines[::max(1, len(lines) // (2 * NUM_SCHEMAS))]:
        schema = {"type": "array", "minItems": 100, "items": bounded(json.loads(line)["schema"], string_len)}
        if "$ref" in json.dumps(schema):
            continue  # it would name another place now
        try:
            ask(port, {"prompt": [100], "max_tokens": 1, "structured_outputs": {"json": schema}}).read()
        except RuntimeError:
            continue  # not taken
        taken.append(schema)
    return taken[:NUM_SCHEMAS]


def speed(port, args, numbers, schemas):
    """Output tokens a second of requests that take these schemas in turn (none = without), --batch at a time."""
    bodies = []
    for i in range(max(args.batch, args.requests)):
        prompt = [numbers.randrange(100, 1000) for _ in range(args.prompt_len)]
        body = {"prompt": prompt, "max_tokens": args.output_len, "min_tokens": args.output_len, "temperature": 1, "seed": i}
        if schemas:
            body["structured_outputs"] = {"json": schemas[i % len(schemas)]}
        bodies.append(body)
    tokens, lock = [], threading.Lock()

    def work():
        while True:
            with lock:
                if not bodies:
                    return
                body = bodies.pop()
            answer = json.load(ask(port, body))
            tokens.append(answer["usage"]["completion_tokens"])

    threads = [threading.Thread(target=work) for _ in range(args.batch)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if set(tokens) != {args.output_len}:
        raise RuntimeError(f"answers of {sorted(set(tokens))} tokens")
    return sum(tokens) / (time.monotonic() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("schemas")
    parser.add_argument("--batch", type=int, default=16, help="requests at a time")
    parser.add_argument("--requests", type=int, default=5, help="requests of a round, at least a batch")
    parser.add_argument("--prompt-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--string-len", type=int, default=16, help="characters of strings that have no bound; 0 = no bound")
    parser.add_argument("--fresh", action="store_true")
    args, flags = parser.parse_known_args()
    server, port = start(args.binary, args.model, ["--max-num-seqs", str(args.batch), *flags])
    try:
        numbers = random.Random(1)
        schemas = taken_schemas(port, args.schemas, args.string_len)
        speed(port, args, numbers, [])
        speed(port, args, numbers, schemas)
        ratios = []
        for number in range(args.rounds):
            # Titles are part of schemas.
            asked = [{**schema, "title": str(number)} for schema in schemas] if args.fresh else schemas
            free, bound = speed(port, args, numbers, []), speed(port, args, numbers, asked)
            ratios.append(bound / free)
            print(f"without {free:9.1f} tok/s, {len(schemas)} schemas {bound:9.1f} tok/s, ratio {ratios[-1]:.3f}", flush=True)
        print(f"batch {args.batch}: median ratio {statistics.median(ratios):.3f}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
