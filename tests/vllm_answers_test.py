"""What vLLM 0.32 answered (tests/data/vllm_answers.jsonl) beside what the server answers to the same calls: statuses, headers, fields,
values, and the order of chunks."""
import json
import os
import sys
import unittest

from serve_testing import Server

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))
from record_vllm_answers import VOLATILE, without_volatile  # noqa: E402

TOLERANCE = 0.02  # of a log-probability: both compute in another order
# Where we answer otherwise, by a part of the body.
OTHERWISE = ('"n": null',                          # here the default
             '"content": null',                    # here an empty text, whoever says it
             '"text": "b"}',                       # here behind "a" without a line break
             '"stream": "yes"',                    # here no boolean
             '"best_of": 2',                       # here refused, there ignored
             '"priority": 1}',                     # here refused, there ignored in spite of its help
             '"stream": true, "stop": ["girl"]')   # here only what may begin a stop text is held back


def folded(before, after):
    """Two chunks as one: texts and lists are joined, of all else what came later counts."""
    if isinstance(before, dict) and isinstance(after, dict):
        return {name: folded(before.get(name), after.get(name)) for name in {**before, **after} if name != "index"} | (
            {"index": before["index"]} if "index" in before else {})
    if isinstance(before, (str, list)) and isinstance(after, type(before)):
        return before + after
    return before if after is None else after


def by_choice(chunks):
    """A stream's chunks without what is chance: whose come first, and how many tokens come at once.
    What stays is the order of a choice's role, its deltas and its end, and of the chunks without a choice."""
    result = []
    for chunk in sorted(chunks, key=lambda it: it["choices"][0]["index"] if it != "[DONE]" and it["choices"] else 1000):
        choice = chunk["choices"][0] if chunk != "[DONE]" and chunk["choices"] else None
        last = result[-1]["choices"][0] if result and choice else None
        if not last or last["index"] != choice["index"] or last["finish_reason"] or "role" in last.get("delta", {}):
            result.append(chunk)
        else:
            usage = chunk.get("usage")
            constant = {name: chunk[name] for name in ("id", "object", "created", "model")}
            result[-1] = {**chunk, **result[-1], **constant, "choices": [folded(last, choice)], **({"usage": usage} if usage else {})}
    return result


def difference(ours, theirs, values, path=""):
    """The first difference, with the way to it; None = none. Without `values` the shape alone counts."""
    differs = f"{path}: {json.dumps(ours)} beside {json.dumps(theirs)}"
    if isinstance(theirs, (int, float)) and not isinstance(theirs, bool):
        is_number = isinstance(ours, (int, float)) and not isinstance(ours, bool)
        return None if is_number and (not values or abs(ours - theirs) <= (TOLERANCE if isinstance(theirs, float) else 0)) else differs
    if type(ours) is not type(theirs):
        return differs
    if isinstance(ours, dict):
        if values and set(ours) != set(theirs):
            return differs
        pairs = [(f"{path}.{name}", ours[name], theirs[name]) for name in ours if name in theirs and name not in VOLATILE]
    elif isinstance(ours, list):
        if values and len(ours) != len(theirs):
            return differs
        pairs = [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(ours, theirs))]
    else:
        return differs if values and ours != theirs else None
    return next((found for path, a, b in pairs if (found := difference(a, b, values, path))), None)


class VllmAnswers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "demo", "--max-model-len", "256", "--dtype", "float32", small=False)
        cls.addClassCleanup(cls.server.close)

    def check(self, record):
        method, path, body = record["method"], record["path"], record["body"]
        answer = self.server.request(method, path, body or None)
        self.assertEqual(answer.status, record["status"], answer.text)
        if "chunks" in record:
            self.assertEqual(answer.getheader("content-type"), "text/event-stream; charset=utf-8")
            self.assertEqual(answer.text[-2:], "\n\n")
            events = [event.removeprefix("data: ") for event in answer.text[:-2].split("\n\n")]
            ours = by_choice([event if event == "[DONE]" else without_volatile(json.loads(event)) for event in events])
            theirs = by_choice(record["chunks"])
        elif record["answer"] == "":
            self.assertEqual((answer.text, answer.getheader("content-length")), ("", "0"))
            return
        else:
            self.assertEqual(answer.getheader("content-type"), "application/json")
            self.assertEqual(int(answer.getheader("content-length")), len(answer.text.encode()))
            ours, theirs = without_volatile(answer.json), record["answer"]
        if record["status"] == 200:
            is_random = '"seed"' in body or '"temperature": null' in body
            self.assertIsNone(difference(ours, theirs, values=not is_random))
        elif "error" in theirs:
            self.assertEqual({name: type(value) for name, value in ours["error"].items() if name != "param"},
                             {name: type(value) for name, value in theirs["error"].items() if name != "param"})
            self.assertEqual(ours["error"]["code"], theirs["error"]["code"])
            # The pydantic of vLLM says "Bad Request" of a field of a wrong type.
            self.assertEqual(ours["error"]["type"], theirs["error"]["type"].replace("Bad Request", "BadRequestError"))
        else:  # what its web framework says without vLLM
            self.assertEqual(ours["error"]["code"], answer.status)
        if answer.status == 405:
            self.assertEqual(answer.getheader("allow"), "POST")

    def test_the_same_calls_get_the_same_answers(self):
        with open(os.path.join(HERE, "data", "vllm_answers.jsonl"), encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        self.assertEqual(len(records), 185)
        for record in records:
            if not any(part in record["body"] for part in OTHERWISE):
                with self.subTest(path=record["path"], body=record["body"]):
                    self.check(record)


if __name__ == "__main__":
    unittest.main()
