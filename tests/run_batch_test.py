"""`nanovllm run-batch`: answers are the server's own, bad lines don't stop a job, killed ones go on, and it is a filter."""
import fcntl
import json
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import time
import unittest

from cli_testing import BINARY, MODEL, SANITIZED, CliTest, lines, run, run_watched
from serve_testing import Server

SETTINGS = ["--max-model-len", "512", "--max-num-seqs", "8", "--kv-cache-memory", "64M", "--num-threads", "1"]
TOOL = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": {
    "type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}, "legs": {"const": 4}}, "required": ["kind", "legs"], "additionalProperties": False}}}
HELLO = [{"role": "user", "content": "Hello."}]


def request(custom_id, body, url="/v1/completions", **more):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more}


def short(i, **more):
    return request(f"r{i}", {"prompt": f"The number {i}", "max_tokens": 20 + i % 5, "temperature": 0.8, **more})


def jsonl(requests):
    return "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in requests)


def without_chance(value):
    """An answer without ids and times, which differ from one to the next."""
    text = json.dumps(value)
    text = re.sub(r"[0-9a-f]{32}", "ID", text)
    text = re.sub(r'("(?:created|created_at|completed_at)": )[\d.]+', r"\1 0", text)
    return json.loads(re.sub(r"(call_|toolu_|fc_|tool-)\w+", r"\1ID", text))


def texts(path_or_text):
    """What was drawn, by place."""
    text = path_or_text if isinstance(path_or_text, str) else path_or_text.read_text()
    answers = [(int(line["id"].removeprefix("batch_req_")), line) for line in lines(text)]
    return sorted((index, line["custom_id"], line["response"] and line["response"]["status_code"],
                   line["response"] and [choice["text"] for choice in line["response"]["body"].get("choices", [])]) for index, line in answers)


class BatchTest(CliTest):
    def setUp(self):
        super().setUp()
        self.source, self.output = self.path("in.jsonl"), self.path("out.jsonl")

    def command(self, *flags, source=None, output=None):
        return ["run-batch", "-i", source or self.source, "-o", output or self.output, "--model", MODEL, *SETTINGS, *flags]

    def write(self, requests):
        self.source.write_text(jsonl(requests))

    def batch(self, requests, *flags, status=0):
        self.write(requests)
        result = run(*self.command("-q", *flags))
        self.assertEqual(result.returncode, status, result.stderr)
        answers = lines(self.output.read_text())
        self.assertEqual(len(answers), len(requests))
        return {answer["custom_id"]: answer for answer in answers}

    def popen(self, *flags, source=None, **kwargs):
        process = subprocess.Popen([BINARY, *map(str, self.command(*flags, source=source))], stderr=subprocess.PIPE, **kwargs)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait_for_lines(self, count, process=None):
        deadline = time.monotonic() + 120
        while not self.output.exists() or self.output.read_bytes().count(b"\n") < count:
            self.assertLess(time.monotonic(), deadline)
            if process is not None:
                self.assertIsNone(process.poll())
            time.sleep(0.002)

    def worker_of(self, process):
        found = []
        while not found:
            for task in os.listdir(f"/proc/{process.pid}/task"):
                with open(f"/proc/{process.pid}/task/{task}/children", encoding="ascii") as children:
                    found += children.read().split()
        return int(found[0])


class Answers(BatchTest):
    def test_they_are_the_servers_own(self):
        chat, completions, responses, messages = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
        greedy = {"temperature": 0, "max_tokens": 12}
        asked = [
            request("chat", {"messages": HELLO, **greedy}, chat),
            request("logprobs", {"messages": HELLO, "logprobs": True, "top_logprobs": 2, **greedy}, chat),
            request("several", {"prompt": ["Once", "The dog"], "n": 2, "seed": 5, "max_tokens": 8}, completions),
            request("echo", {"prompt": [5, 6, 7], "echo": True, "logprobs": 1, **greedy}, completions),
            request("responses", {"input": "Hello.", "temperature": 0, "max_output_tokens": 8}, responses),
            request("messages", {"model": "demo", "messages": HELLO, **greedy}, messages),
            request("count", {"model": "demo", "messages": HELLO}, "/v1/messages/count_tokens"),
            request("tokenize", {"prompt": "Hello"}, "/tokenize"),
            request("detokenize", {"tokens": [5, 6, 7]}, "/detokenize"),
            request("tool", {"messages": HELLO, "tools": [TOOL], "tool_choice": "required", "seed": 7, "max_tokens": 200}, chat),
            request("schema", {"messages": HELLO, "response_format": SCHEMA, "seed": 7, "max_tokens": 200}, chat),
            request("no number", {"prompt": "a", "max_tokens": "many"}, completions),
            request("too long", {"prompt": "a", "max_tokens": 100000}, completions),
            request("no model", {"model": "gpt-4o", "messages": HELLO}, chat),
            request("bad schema", {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}}, chat),
            request("no messages", {"model": "demo", "max_tokens": 5}, messages),
            request("twice", '{"prompt": "a", "prompt": "b"}', completions),
            request("not json", '{"prompt": tru}', completions),
            request("no object", [1], responses),
        ]
        flags = ["--served-model-name", "demo", "--tool-call-parser", "hermes"]
        raw = {"twice", "not json"}  # whose body is written as it is
        plain = [json.dumps(one) if one["custom_id"] not in raw else json.dumps({**one, "body": 0}).replace('"body": 0', f'"body": {one["body"]}') for one in asked]
        answers = self.batch(plain, *flags, status=3)
        server = Server(*SETTINGS, *flags, small=False)
        self.addCleanup(server.close)
        for one in asked:
            name, answer = one["custom_id"], answers[one["custom_id"]]
            body = one["body"] if name in raw else json.dumps(one["body"])
            own = server.request("POST", one["url"], body, {"Content-Type": "application/json"})
            with self.subTest(name):
                self.assertEqual(answer["response"]["status_code"], own.status, answer)
                self.assertEqual(without_chance(answer["response"]["body"]), without_chance(own.json))
                self.assertRegex(answer["response"]["request_id"], "^[0-9a-f]{32}$")
                self.assertEqual(answer["error"] is None, own.status == 200)
                if own.status != 200:
                    self.assertEqual(answer["error"]["message"], own.json["error"]["message"])
        self.assertEqual({name for name, answer in answers.items() if answer["error"]},
                         {"no number", "too long", "no model", "bad schema", "no messages", "twice", "not json", "no object"})
        call = answers["tool"]["response"]["body"]["choices"][0]["message"]["tool_calls"][0]["function"]
        self.assertEqual((call["name"], set(json.loads(call["arguments"]))), ("get_weather", {"city", "days"}))
        self.assertIn(json.loads(answers["schema"]["response"]["body"]["choices"][0]["message"]["content"]),
                      [{"kind": kind, "legs": 4} for kind in ("cat", "dog")])

    def test_bad_lines_have_their_error_and_stop_nothing(self):
        good = short(0)
        self.write([good, "nonsense", '{"custom_id": "half', "[1]", {**good, "url": "/v1/embeddings"}, {**good, "method": "GET"},
                    {**good, "custom_id": 5}, {"custom_id": "no url", "method": "POST", "body": {}}, {"custom_id": "no body", "method": "POST", "url": "/tokenize"},
                    "  ", {**good, "body": {**good["body"], "stream": True}}, {key: good[key] for key in ("method", "url", "body")}, short(1)])
        result = run(*self.command("-q"))
        self.assertEqual(result.returncode, 3)
        self.assertEqual(result.stderr, f"nanovllm: 9 of 12 lines have an error for an answer; {self.output} says why\n")
        answers = {int(line["id"].removeprefix("batch_req_")): line for line in lines(self.output.read_text())}
        self.assertEqual(sorted(answers), list(range(12)))
        self.assertEqual([answers[i]["custom_id"] for i in range(12)], ["r0", None, None, None, "r0", "r0", None, "no url", "no body", "r0", None, "r1"])
        codes = [(answers[i]["error"] or {}).get("code") for i in range(12)]
        self.assertEqual(codes, [None, *["invalid_json_line"] * 3, "invalid_url", "invalid_method", "invalid_request", *["missing_required_parameter"] * 2,
                                 "BadRequestError", None, None])
        self.assertEqual([i for i in answers if answers[i]["response"] is None], [i for i in answers if codes[i] and i != 9])
        self.assertIn("at line 3, column 20", answers[2]["error"]["message"])
        self.assertEqual(answers[9]["response"]["status_code"], 400)
        self.assertIn("leave stream out", answers[9]["error"]["message"])

    def test_a_line_that_is_too_long_is_told(self):
        with open(self.source, "w") as file:
            file.write(json.dumps(short(0)) + "\n")
            for _ in range(65):
                file.write("x" * (1 << 20))
            file.write("\n" + json.dumps(short(1)) + "\n")
        self.assertEqual(run(*self.command("-q")).returncode, 3)
        answers = {line["id"]: line for line in lines(self.output.read_text())}
        self.assertEqual({name: line["custom_id"] for name, line in answers.items()}, {"batch_req_0": "r0", "batch_req_1": None, "batch_req_2": "r1"})
        self.assertRegex(answers["batch_req_1"]["error"]["message"], r"longer than \d+ MiB")

    def test_draws_follow_the_name_of_a_line(self):
        """Not its place, nor what is beside it: so do parts of a job that run elsewhere."""
        requests = [short(i) for i in range(12)]
        by_name = lambda answers: {name: line["response"]["body"]["choices"][0]["text"] for name, line in answers.items()}
        whole = by_name(self.batch(requests))
        parts = {**by_name(self.batch(requests[7:][::-1], "--max-num-seqs", "2")), **by_name(self.batch(requests[:7], "--data-parallel-size", "2"))}
        self.assertEqual(parts, whole)
        self.assertNotEqual(by_name(self.batch(requests, "--engine-seed", "5")), whole)
        same = {"prompt": "Once upon a time", "max_tokens": 20}
        self.write([{"method": "POST", "url": "/v1/completions", "body": same}] * 2 + [request("a", same), request("b", same)])
        self.assertEqual(run(*self.command("-q")).returncode, 0)
        self.assertEqual(len({str(drawn) for *_, drawn in texts(self.output)}), 4)

    def test_a_byte_order_mark_is_no_part_of_a_line(self):
        mark = "\ufeff"  # of the file, and of a second one behind it
        self.source.write_text(mark + jsonl([short(0), short(1)]) + mark + jsonl([short(2)]))
        result = run_watched(*self.command())
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([name for _, name, *_ in texts(self.output)], ["r0", "r1", "r2"])
        self.assertIn(" 3/3 ", result.stderr)
        self.source.write_text(mark + " \n")  # nothing but the mark
        self.assertEqual(run(*self.command("-q")).returncode, 0)
        self.assertEqual(self.output.read_text(), "")

    def test_the_example_of_the_documentation(self):
        page = (pathlib.Path(__file__).parent.parent / "docs" / "batch.md").read_text(encoding="utf-8")
        asked = re.search(r"<<'END'\n(.*?)END\n", page, re.DOTALL)[1].splitlines()
        answers = self.batch(asked, "--tool-call-parser", "hermes")
        self.assertEqual(sorted(answers), ["animal", "hello", "story", "weather"])
        choice = {name: answers[name]["response"]["body"]["choices"][0] for name in ("animal", "weather")}
        self.assertEqual(set(json.loads(choice["animal"]["message"]["content"])), {"kind", "legs"})
        (call,) = choice["weather"]["message"]["tool_calls"]
        self.assertEqual((choice["weather"]["finish_reason"], set(json.loads(call["function"]["arguments"]))), ("tool_calls", {"city"}))

    def test_a_line_says_nothing_twice(self):
        self.source.write_text(json.dumps(short(0)).replace("{", '{"custom_id": "other", ', 1) + "\n")
        result = run(*self.command("-q"))
        self.assertEqual((result.returncode, result.stderr), (3, f"nanovllm: 1 of 1 line has an error for an answer; {self.output} says why\n"))
        answer = json.loads(self.output.read_text())
        self.assertEqual((answer["custom_id"], answer["response"]), (None, None))
        self.assertIn('the key "custom_id" appears twice in one object', answer["error"]["message"])

    def test_what_is_ignored_is_said_once(self):
        self.write([short(i, colour="red") for i in range(3)])
        self.assertEqual(run(*self.command("-q")).stderr, "nanovllm: what is not known here is ignored: colour\n")

    def test_an_empty_file_has_no_answers(self):
        for text in ("", "\n \n"):
            self.source.write_text(text)
            self.assertEqual(run(*self.command("-q")).returncode, 0)
            self.assertEqual(self.output.read_text(), "")

    def test_nothing_to_do_is_said(self):
        self.source.write_text("")
        self.assertEqual(run(*self.command()).stderr, f"nanovllm: nothing to do: {self.source} has no requests\n")
        piped = run(*self.command(source="-", output="-"), stdin="\n")
        self.assertEqual((piped.returncode, piped.stdout, piped.stderr), (0, "", "nanovllm: nothing to do: standard input has no requests\n"))
        self.batch([short(0)])
        before = self.output.read_text()
        self.assertEqual(run(*self.command("--resume")).stderr, f"nanovllm: nothing to do: all requests of {self.source} are answered\n")
        self.assertEqual(run(*self.command("--resume", "-q")).stderr, "")
        self.assertEqual(self.output.read_text(), before)

    def test_memory_does_not_grow_with_the_file(self):
        peak = {}
        for count in (300, 3000):
            self.write([request(f"r{i}", {"prompt": f"{i}", "max_tokens": 1}) for i in range(count)])
            process = self.popen("-q")
            while process.poll() is None:
                try:
                    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
                        found = re.search(r"VmHWM:\s+(\d+) kB", status.read())
                    peak[count] = int(found[1]) if found else peak.get(count, 0)
                except OSError:
                    break
                time.sleep(0.01)
            self.assertEqual(process.wait(), 0)
            self.assertEqual(self.output.read_bytes().count(b"\n"), count)
        if not SANITIZED:  # they keep what is freed
            self.assertLess(peak[3000] - peak[300], 8 << 10, peak)


class Progress(BatchTest):
    BAR = r"Answering [█ ]*{0}/{0} \[\d\d:\d\d, prefill \d+ tok/s, decode \d+ tok/s\]\n"

    def test_it_ends_with_the_speed_of_the_run(self):
        self.write([short(i) for i in range(5)])
        self.assertRegex(run_watched(*self.command()).stderr, f"^{self.BAR.format(5)}$")
        self.output.unlink()
        self.assertRegex(run(*self.command()).stderr, f"^nanovllm: {self.BAR.format(5)}$")
        self.output.unlink()
        self.assertEqual(run(*self.command("--quiet")).stderr, "")
        text = self.output.read_text()
        self.output.write_text("".join(text.splitlines(keepends=True)[:3]))
        self.assertRegex(run_watched(*self.command("--resume")).stderr, f"^{self.BAR.format(2)}$")

    def test_it_tells_the_time_left(self):
        self.write([short(i) for i in range(20)] + [short(i, max_tokens=400, ignore_eos=True) for i in range(20, 60)])
        shown = run_watched(*self.command(), env={**os.environ, "NANOVLLM_CPU_ISA": "portable"}).drawn
        bars = re.findall(r"Answering [█░ ]*(\d+)/60 \[\d\d:\d\d, prefill \d+ tok/s, decode \d+ tok/s(, \d\d:\d\d left)?\]", shown)
        self.assertTrue(any(left for _, left in bars), shown[-2000:])
        self.assertTrue(all(done not in ("0", "60") for done, left in bars if left), shown[-2000:])


class Resume(BatchTest):
    COUNT = 20 if SANITIZED else 60

    def setUp(self):
        super().setUp()
        self.requests = [short(i) for i in range(self.COUNT)]
        self.requests[7] = request("refused", {"prompt": "a", "max_tokens": -5})
        self.requests[8] = "no request"
        self.requests[9] = self.requests[10]  # has its name
        self.requests[11] = {key: self.requests[11][key] for key in ("method", "url", "body")}  # has none
        self.write(self.requests)

    def whole_run(self):
        self.assertEqual(run(*self.command("-q")).returncode, 3)
        text = self.output.read_text()
        self.assertEqual([index for index, *_ in texts(text)], list(range(self.COUNT)))
        self.output.unlink()
        return text

    def assert_all_answered(self, expected):
        self.assertEqual(texts(self.output), texts(expected))

    def test_killed_runs_go_on(self):
        expected = self.whole_run()
        chance = random.Random(5)
        num_killed = 0
        size = lambda: self.output.stat().st_size if self.output.exists() else 0
        for _ in range(3 if SANITIZED else 6):
            process = self.popen("--resume", "-q")
            enough = size() + chance.randrange(len(expected) // 6)
            while process.poll() is None and size() <= enough:
                time.sleep(0.001)
            process.kill()
            num_killed += process.wait() == -signal.SIGKILL
        self.assertGreater(num_killed, 1)
        self.assertEqual(run(*self.command("--resume", "-q")).returncode, 3)
        self.assert_all_answered(expected)
        before = self.output.read_text()
        result = run(*self.command("--resume", "-q"))
        self.assertEqual((result.returncode, self.output.read_text()), (3, before))
        self.assertEqual(result.stderr, f"nanovllm: 2 of {self.COUNT} lines have an error for an answer; {self.output} says why\n")

    def test_half_a_line_is_cut_in_place(self):
        """No room is needed for it on a full disk."""
        expected = self.whole_run()
        end = expected.index("\n", len(expected) // 2) + 1
        begin = expected.rindex("\n", 0, end - 1) + 1
        for size in (begin, begin + 1, (begin + end) // 2, end - 1, end):
            with self.subTest(size - begin):
                self.output.write_text(expected[:size])
                before = self.output.stat().st_ino
                self.assertEqual(run(*self.command("--resume", "-q")).returncode, 3)
                self.assertTrue(self.output.read_text().startswith(expected[:end if size == end else begin]))
                self.assertEqual(self.output.stat().st_ino, before)
                self.assert_all_answered(expected)

    def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(self):
        expected = self.whole_run()
        slow = self.requests[:20] + [short(i, max_tokens=400, ignore_eos=True) for i in range(20, 60)]
        for number in (signal.SIGINT, signal.SIGTERM):
            self.write(slow)
            process = self.popen("-q")
            self.wait_for_lines(4)
            begin = time.monotonic()
            process.send_signal(number)
            said = process.communicate(timeout=60)[1].decode()
            self.assertLess(time.monotonic() - begin, 20 if SANITIZED else 5)
            self.assertEqual(process.returncode, 130)
            text = self.output.read_text()
            self.assertTrue(text.endswith("\n"))
            count = len(texts(text))
            self.assertEqual(said, f"nanovllm: interrupted: {count} lines answered, {60 - count} not; {self.output} keeps what was answered, "
                                   "and the same command with --resume goes on\n")
            self.assertTrue({line["response"]["status_code"] for line in lines(text) if line["response"]} <= {200, 400})
            self.write(self.requests)
            self.output.write_text("".join(line + "\n" for line in text.splitlines() if int(re.search(r"batch_req_(\d+)", line)[1]) < 20))
            self.assertEqual(run(*self.command("--resume", "-q")).returncode, 3)
            self.assert_all_answered(expected)
            self.output.unlink()

    def test_a_full_disk_loses_nothing(self):
        expected = self.whole_run()
        for size in (len(expected) // 3, 1000):
            limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))}  # bytes
            full = run(*self.command("-q"), **limit)
            self.assert_one_sentence(full, f"cannot write results to {self.output}: File too large; {self.output} keeps what was answered, and the same "
                                           "command with --resume goes on")
            self.assertEqual(self.output.stat().st_size, size)
            self.assert_one_sentence(run(*self.command("-q", "--resume"), **limit), "File too large")
            self.assertEqual(run(*self.command("--resume", "-q")).returncode, 3)
            self.assert_all_answered(expected)
            self.output.unlink()
        result = run(*self.command("-q", output="/dev/full"))
        self.assert_one_sentence(result, "cannot write results to /dev/full: No space left on device")
        self.assertNotIn("--resume", result.stderr)
        with open("/dev/full", "w") as nowhere:
            result = subprocess.run([BINARY, *map(str, self.command("-q", output="-"))], stdout=nowhere, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assert_one_sentence(result, "cannot write results to standard output: No space left on device")

    def test_the_output_is_locked(self):
        self.source.write_text("")
        reader = self.popen("-q", "--resume", source="-", stdin=subprocess.PIPE)
        while not self.output.exists():
            time.sleep(0.005)
        time.sleep(0.05)
        for flags in ([], ["--resume"]):
            result = run(*self.command("-q", *flags))
            self.assert_one_sentence(result, f"{self.output}: another run writes its results there; wait for its end, or name another file")
        reader.communicate(b"", timeout=300)
        self.assertEqual(run(*self.command("-q", "--resume")).returncode, 0)
        with open(self.output, "a") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            self.assert_one_sentence(run("run-batch", "-i", self.source, "-o", self.output, MODEL), "another run writes its results there")

    def test_the_output_of_another_job_is_refused(self):
        asked = [short(i) for i in range(4)]
        self.write(asked)
        self.assertEqual(run(*self.command("-q")).returncode, 0)
        whole = self.output.read_text()
        for place, changed in ((0, short(17)), (2, {key: asked[2][key] for key in ("method", "url", "body")}), (3, "no request")):
            self.write([*asked[:place], changed, *asked[place + 1:]])
            said = f"cannot resume: {self.source}:{place + 1} is not the request that the result {place} answers; give the input that the earlier run had"
            self.assert_one_sentence(run(*self.command("-q", "--resume")), said)
            self.assertEqual(self.output.read_text(), whole)
        self.write(asked[:3])
        self.assert_one_sentence(run(*self.command("-q", "--resume")), "has 3 requests, and the results are of 4 or more")
        self.write([*asked, short(4)])  # it may have grown
        self.assertEqual(run(*self.command("-q", "--resume")).returncode, 0)
        self.assertEqual([name for _, name, *_ in texts(self.output)], [f"r{i}" for i in range(5)])
        generated = '{"index": 0, "text": "a", "token_ids": [1], "finish_reason": "stop"}\n'
        of_vllm = '{"id": "vllm-1", "custom_id": "r0", "response": null, "error": null}\n'
        for text in (generated, of_vllm, "mine\n"):
            self.output.write_text(text + whole)
            self.assert_one_sentence(run(*self.command("-q", "--resume")), f"{self.output}:1 is no result of an earlier run: --resume can't go on behind it")
            self.assertEqual(self.output.read_text(), text + whole)

    def test_a_line_that_was_no_request_may_have_been_mended(self):
        self.write([short(0), '{"custom_id": "r1", "method'])
        self.assertEqual(run(*self.command("-q")).returncode, 3)
        self.output.write_text(self.output.read_text())
        self.write([short(0), short(1)])
        self.assertEqual(run(*self.command("-q", "--resume")).returncode, 3)  # its error stands
        self.output.write_text("".join(line for line in self.output.read_text().splitlines(keepends=True) if "invalid_json_line" not in line))
        self.assertEqual(run(*self.command("-q", "--resume")).returncode, 0)
        self.assertEqual([name for _, name, *_ in texts(self.output)], ["r0", "r1"])

    def test_without_the_flag_answers_are_replaced_and_that_is_said(self):
        self.write([short(0)])
        self.output.write_text("of another run\n")
        self.assertIn(f"nanovllm: {self.output} is written anew; --resume would go on behind what it has\n", run(*self.command()).stderr)
        self.assertEqual([name for _, name, *_ in texts(self.output)], ["r0"])


class OthersFiles(BatchTest):
    """What `--resume` makes of a file, seen without a model: its outputs are looked at before its input, which is not there."""
    ANSWER = ('{"id":"batch_req_12","custom_id":"caf\u00e9","response":{"status_code":200,"request_id":"0f","body":{"choices":[{"text":"a \\"b\\" }"}]}},'
              '"error":null}\n')
    REFUSAL = '{"id":"batch_req_0","custom_id":null,"response":null,"error":{"code":"invalid_url","message":"No."}}\n'
    GENERATED = '{"index":0,"text":"a","token_ids":[1],"finish_reason":"stop","num_prompt_tokens":1,"num_cached_tokens":0}\n'

    def assert_taken(self, data):
        self.output.write_bytes(data)
        self.assert_one_sentence(run(*self.command("--resume")), "in.jsonl: No such file or directory")
        self.assertEqual(self.output.read_bytes(), data)

    def assert_refused(self, data, line=1):
        self.output.write_bytes(data)
        self.assert_one_sentence(run(*self.command("--resume")), f"nanovllm: {self.output}:{line} is no result of an earlier run: --resume can't go on behind it; "
                                                                 "name the output of that run, or a new one")
        self.assertEqual(self.output.read_bytes(), data)

    def test_every_beginning_of_an_answer_is_half_a_line(self):
        answer, refusal = self.ANSWER.encode(), self.REFUSAL.encode()
        for size in range(0, len(answer) + 1, 9 if SANITIZED else 1):
            with self.subTest(size):
                self.assert_taken(refusal + answer[:size])
        for size in (1, 20, len(refusal) - 1):
            self.assert_taken(refusal[:size])

    def test_a_last_line_of_anything_else_is_somebody_elses(self):
        for text in ('{"k": 1}\n', '{"k": 1}', "hello\n", "hello", "[]\n", "[]", "\n", " ", "null", '{"id": "batch_req_0"', '{"id":"batch_req_x', '{"id":"batch_req_"',
                     '{"id":"batch_req_0","custom_id":"a"}', self.REFUSAL[:40] + "\n", self.ANSWER[:-1] + "}", '{"id":"vllm-1","custom_id":"a","response":null,"error":null}\n',
                     self.GENERATED, self.GENERATED[:-1], self.GENERATED[:30]):
            with self.subTest(text):
                self.assert_refused(text.encode())
                self.assert_refused((self.REFUSAL + text).encode(), line=2)
        for data in (b"\x00" * 20, b"\xff\xfe", "\ufeff{".encode()):
            self.assert_refused(data)

    def test_half_a_line_of_another_job_stays(self):
        self.write([short(0), short(1)])
        data = self.ANSWER.replace("batch_req_12", "batch_req_0") + '{"id":"batch'
        self.output.write_text(data)
        self.assert_one_sentence(run(*self.command("-q", "--resume")), f"cannot resume: {self.source}:1 is not the request that the result 0 answers")
        self.assertEqual(self.output.read_text(), data)


class Engines(BatchTest):
    def test_one_that_is_killed_comes_back_and_answers_go_on(self):
        count, tokens = (8, 60) if SANITIZED else (24, 200)
        self.write([short(i, max_tokens=tokens + i, ignore_eos=True) for i in range(count)])
        self.assertEqual(run(*self.command("-q")).returncode, 0)
        expected = texts(self.output)
        self.output.unlink()
        process = self.popen("-q")
        self.wait_for_lines(1, process)
        os.kill(self.worker_of(process), signal.SIGKILL)
        said = process.communicate(timeout=300)[1].decode()
        self.assertEqual(process.returncode, 0, said)
        self.assertEqual(texts(self.output), expected)
        self.assertRegex(said, r"^nanovllm: Worker 0 was ended by SIGKILL\. It is started again; \d+ requests on it will go on\.\n")

    def test_one_that_does_not_come_back_ends_the_run(self):
        model = self.path("model")
        shutil.copytree(MODEL, model)
        self.write([short(i, max_tokens=400, ignore_eos=True) for i in range(40)])
        patience = 20 if SANITIZED else 1  # seconds, in which it has to load before
        for output, rest in ((self.output, f"; {self.output} keeps what was answered, and the same command with --resume goes on"), ("-", "")):
            process = subprocess.Popen([BINARY, "run-batch", "-q", "-i", self.source, "-o", output, model, *SETTINGS, "--worker-start-timeout", str(patience)],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(process.kill)
            if output == "-":
                process.stdout.readline()
            else:
                self.wait_for_lines(1, process)
            (model / "config.json").rename(model / "gone.json")
            os.kill(self.worker_of(process), signal.SIGKILL)
            said = process.communicate(timeout=120)[1]
            (model / "gone.json").rename(model / "config.json")
            self.assertEqual(process.returncode, 1, said)
            self.assertRegex(said.splitlines()[-1], f"^nanovllm: No worker was ready for {patience} s: .*raise --worker-start-timeout{re.escape(rest)}$")
        self.assertEqual(run("run-batch", "-q", "--resume", "-i", self.source, "-o", self.output, model, *SETTINGS).returncode, 0)
        self.assertEqual([index for index, *_ in texts(self.output)], list(range(40)))

    def test_a_model_that_does_not_load_is_told_and_leaves_the_output(self):
        broken = self.path("broken")
        shutil.copytree(MODEL, broken)
        os.truncate(broken / "model.safetensors", 4096)
        self.write([short(0)])
        self.output.write_text("of another run\n")
        result = run("run-batch", "-i", self.source, "-o", self.output, broken, *SETTINGS)
        self.assert_one_sentence(result, "model.safetensors")
        self.assertEqual(self.output.read_text(), "of another run\n")
        self.output.unlink()
        self.assertEqual(run("run-batch", "-i", self.source, "-o", self.output, broken, *SETTINGS).returncode, 1)
        self.assertFalse(self.output.exists())

    def test_ctrl_c_while_it_loads(self):
        self.write([short(0)])
        process = self.popen("-q", env={**os.environ, "NANOVLLM_CPU_ISA": "portable"})
        time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertIn(process.returncode, (130, -signal.SIGINT))  # the second before there is a handler

    def test_no_process_is_left(self):
        self.write([short(i, max_tokens=400, ignore_eos=True) for i in range(40)])
        process = self.popen("-q")
        self.wait_for_lines(1)
        worker = self.worker_of(process)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while os.path.exists(f"/proc/{worker}"):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


class Filter(BatchTest):
    def start(self, *flags):
        process = subprocess.Popen([BINARY, *map(str, self.command("-q", *flags, source="-", output="-"))], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        self.addCleanup(process.kill)
        return process

    def test_each_answer_comes_when_it_is_there(self):
        process = self.start()
        for i in range(3):
            process.stdin.write(json.dumps(short(i)) + "\n")
            self.assertEqual(json.loads(process.stdout.readline())["custom_id"], f"r{i}")
        process.stdin.write(json.dumps(short(3, max_tokens=100, ignore_eos=True)) + "\n" + json.dumps(short(4, max_tokens=1)) + "\n" + "no request\n")
        self.assertEqual({json.loads(process.stdout.readline())["custom_id"] for _ in range(2)}, {None, "r4"})
        self.assertEqual(json.loads(process.stdout.readline())["custom_id"], "r3")
        rest, said = process.communicate(json.dumps(short(5)), timeout=120)  # the last line needs no end
        self.assertEqual([line["custom_id"] for line in lines(rest)], ["r5"])
        self.assertEqual((process.returncode, said), (3, "nanovllm: 1 of 7 lines has an error for an answer\n"))

    def test_more_lines_than_are_taken_ahead(self):
        process = self.start("--max-num-seqs", "2")
        count = 20 if SANITIZED else 50
        answers, said = process.communicate(jsonl(short(i) for i in range(count)), timeout=300)
        self.assertEqual((process.returncode, said), (0, ""))
        self.assertEqual([index for index, *_ in texts(answers)], list(range(count)))

    def test_it_ends_where_nobody_reads(self):
        process = self.start()
        process.stdin.write(json.dumps(short(0)) + "\n")
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(json.dumps(short(1)) + "\n")
        self.assertEqual(process.wait(timeout=120), -signal.SIGPIPE)
        self.assertEqual(process.stderr.read(), "")  # as of other filters

    def test_it_says_so_where_that_signal_is_ignored(self):
        command = " ".join(map(shlex.quote, map(str, [BINARY, *self.command("-q", source="-", output="-")])))
        ignoring = subprocess.run(["sh", "-c", f"trap '' PIPE; {command} | :"], input=jsonl([short(0)]), stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(ignoring.stderr, "nanovllm: cannot write results to standard output: Broken pipe\n")

    def test_ctrl_c_ends_it_while_it_waits_for_lines(self):
        process = self.start()
        process.stdin.write(json.dumps(short(0)) + "\n")
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 130)
        self.assertEqual(process.stderr.read(), "nanovllm: interrupted: 1 line answered, no others\n")


class Usage(BatchTest):
    def test_help_teaches(self):
        result = run("run-batch", "--help")
        self.assertEqual(result.returncode, 0)
        for word in ("custom_id", "/v1/chat/completions", "--resume", "--tool-call-parser", "--data-parallel-size", "--max-num-seqs", "-i - -o -"):
            self.assertIn(word, result.stdout)
        self.assertNotIn("--port", result.stdout)
        self.assertNotIn("--worker-fd", result.stdout)
        for line in result.stdout.splitlines():
            self.assertLessEqual(len(line), 80, line)
        self.assertIn("run-batch", run("--help").stdout)

    def test_faults_are_sentences(self):
        self.write([short(0)])
        for args, word in ((["-i", self.source, MODEL], "--output-file"), (["-o", self.output, MODEL], "--input-file"), (["-i", self.source, "-o", self.output], "model"),
                           (["-i", self.source, "-o", "", MODEL], "must not be empty")):
            result = run("run-batch", *args)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(word, result.stderr)
        self.assert_one_sentence(run(*self.command(output=self.source)), "in.jsonl is the file that --input-file reads", status=2)
        self.assert_one_sentence(run(*self.command("--resume", output="-")), "--resume reads what --output-file names", status=2)
        self.assert_one_sentence(run(*self.command(source=self.path("none"))), "none: No such file")
        self.assert_one_sentence(run(*self.command(source=self.path("."))), "Is a directory")
        self.assert_one_sentence(run(*self.command(output=self.path("none") / "out")), "No such file")
        self.assert_one_sentence(run(*self.command("--max-num-seqs", "0")), "max_num_seqs", status=2)
        self.assertFalse(self.output.exists())

    def test_names_of_vllms(self):
        self.write([short(0)])
        for names in (["--input-file", self.source, "--output-file", self.output], ["--input_file", self.source, "--output_file", self.output]):
            self.assertEqual(run("run-batch", *names, f"--model={MODEL}", "-q", *SETTINGS).returncode, 0)
            self.assertEqual(len(lines(self.output.read_text())), 1)


if __name__ == "__main__":
    unittest.main()
