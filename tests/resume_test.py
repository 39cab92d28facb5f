"""`nanovllm generate --resume`: runs that were killed go on, and every request is answered once."""
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

from cli_testing import BINARY, MODEL, SANITIZED, CliTest, lines, run

# Two at once would wait for each other's threads where there are few cores.
SETTINGS = ["--max-model-len", "512", "--max-num-seqs", "8", "--temperature", "0.8", "--num-threads", "1"]


class Resume(CliTest):
    def setUp(self):
        super().setUp()
        self.requests = [{"prompt": f"The number {i}", "sampling_params": {"max_tokens": 20 + i % 5}} for i in range(60)]
        self.requests[7] = {"prompt": ""}  # is refused
        self.source = self.path("in.jsonl", "\n".join(map(json.dumps, self.requests)) + "\n\n")
        self.output = self.path("out.jsonl")

    def generate(self, *args):
        return ["generate", MODEL, "--input", self.source, "--output", self.output, *SETTINGS, *args]

    def whole_run(self):
        result = run(*self.generate())
        self.assertEqual(result.returncode, 3)
        text = self.output.read_text()
        self.output.unlink()
        return text

    def assert_all_answered(self, expected):
        order = lambda text: sorted(lines(text), key=lambda line: line["index"])
        self.assertEqual(order(self.output.read_text()), order(expected))

    def test_killed_runs_go_on(self):
        expected = self.whole_run()
        chance = random.Random(5)
        num_killed = 0
        size = lambda: self.output.stat().st_size if self.output.exists() else 0
        for _ in range(8):
            process = subprocess.Popen([BINARY, *map(str, self.generate("--resume", "--quiet"))], stderr=subprocess.DEVNULL)
            enough = size() + chance.randrange(len(expected) // 8)
            while process.poll() is None and size() <= enough:
                time.sleep(0.001)
            process.kill()
            num_killed += process.wait() == -signal.SIGKILL
        self.assertGreater(num_killed, 2)
        self.assertIn(run(*self.generate("--resume")).returncode, (0, 3))
        self.assert_all_answered(expected)

    def test_any_cut_of_the_last_line_is_dropped(self):
        expected = self.whole_run()
        end = expected.index("\n", len(expected) // 2) + 1
        begin = expected.rindex("\n", 0, end - 1) + 1
        for size in (begin, begin + 1, (begin + end) // 2, end - 2, end - 1, end):
            with self.subTest(size - begin):
                self.output.write_text(expected[:size])
                self.assertIn(run(*self.generate("--resume")).returncode, (0, 3))
                self.assertTrue(self.output.read_text().startswith(expected[:end if size == end else begin]))
                self.assert_all_answered(expected)

    def test_no_file_beside_the_output_is_touched_or_left(self):
        expected = self.whole_run()
        neighbours = [self.path(f"out.jsonl.{ending}", "mine") for ending in ("resume", "tmp")]
        self.output.write_text(expected[:len(expected) // 2])  # the last line is torn, or without its end
        self.assertIn(run(*self.generate("--resume")).returncode, (0, 3))
        self.assert_all_answered(expected)
        self.assertEqual([path.read_text() for path in neighbours], ["mine"] * 2)
        self.assertEqual(sorted(self.output.parent.glob("out.jsonl*")), sorted([self.output, *neighbours]))

    def test_an_output_in_use_is_told_before_the_model_is_loaded(self):
        broken = self.path("broken")
        shutil.copytree(MODEL, broken)
        os.truncate(broken / "model.safetensors", 4096)
        self.output.write_text("of another run\n")
        for flags in ([], ["--resume"]):
            with open(self.output, "a") as other:
                fcntl.flock(other, fcntl.LOCK_EX)
                result = run("generate", broken, "--input", self.source, "--output", self.output, *SETTINGS, *flags)
            self.assert_one_sentence(result, "another run writes its results there; wait for its end, or name another file")
            self.assertEqual(self.output.read_text(), "of another run\n")

    def test_what_ctrl_c_cut_short_comes_whole(self):
        expected = self.whole_run()
        long = [{**request, "sampling_params": {"max_tokens": 400, "ignore_eos": True}} for request in self.requests]
        for flags in ([], ["--resume"]):
            self.source.write_text("\n".join(map(json.dumps, long)))
            process = subprocess.Popen([BINARY, *map(str, self.generate(*flags))], stderr=subprocess.PIPE, text=True)
            while not self.output.exists() or len(lines(self.output.read_text())) < 1:  # the one that is refused
                time.sleep(0.01)
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            message = process.communicate(timeout=60)[1]
            cut = [line for line in lines(self.output.read_text()) if line.get("finish_reason") == "abort"]
            if not SANITIZED or "is lost" not in message:  # a step may take longer there than a program waits that is to end
                self.assertIn("cut short", message)
                self.assertEqual(len(cut) > 0, not flags)
            self.output.chmod(0o640)
            link = self.path("link")
            link.symlink_to(self.output)
            self.source.write_text("\n".join(map(json.dumps, self.requests)))
            result = run("generate", MODEL, "--input", self.source, "--output", link, *SETTINGS, "--resume")
            self.assertIn(result.returncode, (0, 3))
            self.assert_all_answered(expected)
            self.assertTrue(link.is_symlink())
            self.assertEqual(self.output.stat().st_mode & 0o777, 0o640)
            self.assertEqual([path.name for path in self.output.parent.glob("out.jsonl?*")], [])
            link.unlink()
            self.output.unlink()

    def test_several_completions_and_finished_files(self):
        self.source.write_text(json.dumps({"prompt": "Once", "sampling_params": {"n": 2, "max_tokens": 4}}) + "\n")
        for _ in range(2):
            self.assertEqual(run(*self.generate("--resume")).returncode, 0)
            self.assertEqual([line["index"] for line in lines(self.output.read_text())], [0])

    def test_two_at_once_answer_nothing_twice(self):
        expected = self.whole_run()
        slow = [json.dumps({"prompt": "The end", "sampling_params": {"max_tokens": 400, "ignore_eos": True}})] * (2 if SANITIZED else 60)
        half = expected[:len(expected) // 2]
        for there in ("", expected[:expected.index("\n") + 1], half):  # of OUTPUT before; the last line of the half has to go
            if there:
                self.output.write_text(there)
            self.source.write_text("\n".join([*map(json.dumps, self.requests), *slow]))
            first = subprocess.Popen([BINARY, *map(str, self.generate("--resume", "-q"))], stderr=subprocess.DEVNULL)
            while not self.output.exists() or self.output.read_text().count("\n") < there.count("\n") + 3:
                time.sleep(0.005)
            link = self.path("link")
            link.symlink_to(self.output)
            before = self.output.stat().st_ino
            for target in (self.output, link):
                for flags in (["--resume"], []):
                    result = run("generate", MODEL, "--input", self.source, "--output", target, *SETTINGS, *flags)
                    self.assert_one_sentence(result, f"{target}: another run writes its results there; wait for its end, or name another file")
            self.assertIsNone(first.poll())
            self.assertEqual(self.output.stat().st_ino, before)
            self.assertIn(first.wait(timeout=300), (0, 3))
            self.assertEqual(sorted(line["index"] for line in lines(self.output.read_text())), list(range(len(self.requests) + len(slow))))
            link.unlink()
            self.output.unlink()

    def test_a_run_that_has_not_begun_to_write_is_noticed(self):
        self.source.write_text("")
        reader = subprocess.Popen([BINARY, *map(str, ["generate", MODEL, "--input", "-", "--output", self.output, "--resume", *SETTINGS])],
                                  stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        while not self.output.exists():
            time.sleep(0.005)
        time.sleep(0.05)
        self.assert_one_sentence(run(*self.generate("--resume")), "another run writes its results there")
        reader.communicate(b"", timeout=300)
        self.assertEqual(run(*self.generate("--resume")).returncode, 0)

    def test_another_input_is_noticed(self):
        """A line that changed or moved, as far as results tell, and lines that are gone; not one that came."""
        asked = [{"prompt": f"Once {'upon a time ' * i}", "custom_id": f"r{i}", "sampling_params": {"max_tokens": 4}} for i in range(4)]
        asked[2] = {"prompt_token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4}}
        asked[3] = {"messages": [{"role": "user", "content": "Hi"}], "custom_id": "chat", "sampling_params": {"max_tokens": 4}}
        write = lambda requests: self.source.write_text("".join(json.dumps(request) + "\n" for request in requests))
        write(asked)
        self.assertEqual(run(*self.generate()).returncode, 0)
        whole = self.output.read_text()
        changed = {"another id": (0, {**asked[0], "custom_id": "r"}), "no id": (0, {"prompt": "Once"}), "an id": (2, {**asked[2], "custom_id": "r2"}),
                   "another chat": (3, {**asked[3], "custom_id": "other"}), "no request": (1, {"custom_id": "r", "prompt": 5})}
        for what, (place, request) in changed.items():
            with self.subTest(what):
                write([*asked[:place], request, *asked[place + 1:]])
                self.assert_one_sentence(run(*self.generate("--resume")), f"cannot resume: {self.source}:{place + 1} is not the request that the result {place} answers")
                self.assertEqual(self.output.read_text(), whole)
        write(asked[:3])
        self.assert_one_sentence(run(*self.generate("--resume")), f"cannot resume: {self.source} has 3 requests, and the results are of 4 or more")
        self.source.write_text("")
        self.assert_one_sentence(run(*self.generate("--resume")), f"cannot resume: {self.source} has 0 requests, and the results are of 4 or more")
        args = ["generate", MODEL, "--input", "-", "--output", self.output, "--resume", *SETTINGS]
        piped = run(*args, stdin=json.dumps(asked[0]) + "\n")
        self.assert_one_sentence(piped, "cannot resume: standard input has 1 request, and the results are of 4 or more")
        self.assertEqual(self.output.read_text(), whole)
        write(asked)
        self.assertEqual((run(*self.generate("--resume")).returncode, self.output.read_text()), (0, whole))
        write([*asked, {"prompt": "The end", "custom_id": "new"}])
        self.assertEqual(run(*self.generate("--resume")).returncode, 0)
        self.assertEqual([line["index"] for line in lines(self.output.read_text())][-1], 4)

    def test_a_line_that_was_refused_may_have_been_mended(self):
        good = {"prompt": "Once", "custom_id": "a", "sampling_params": {"max_tokens": 4}}
        for broken in (json.dumps({**good, "custom_id": "b", "prompt": 5}), '{"custom_id": "b", "prompt": "On'):
            self.source.write_text(json.dumps(good) + "\n" + broken + "\n")
            self.assertEqual(run(*self.generate("-q")).returncode, 3)
            whole = self.output.read_text()
            self.source.write_text("".join(json.dumps({**good, "custom_id": i}) + "\n" for i in "ac"))
            self.assertEqual((run(*self.generate("--resume", "-q")).returncode, self.output.read_text()), (3, whole))
            self.output.write_text("".join(line for line in whole.splitlines(keepends=True) if "error" not in line))
            self.assertEqual(run(*self.generate("--resume", "-q")).returncode, 0)
            self.assertEqual([line["custom_id"] for line in lines(self.output.read_text())], ["a", "c"])

    def test_failures_of_an_earlier_run_stay_in_the_exit_status(self):
        self.requests = self.requests[6:9]  # the second is refused
        self.source.write_text("\n".join(map(json.dumps, self.requests)) + "\n")
        self.whole_run()
        for _ in range(2):
            self.assertEqual(run(*self.generate("--resume")).returncode, 3)
            result = run(*self.generate("--resume", "-q"))
            self.assertEqual((result.returncode, result.stderr), (3, f"nanovllm: 1 request of an earlier run was refused or aborted; {self.output} says why\n"))
        aborted = {"index": 0, "text": "", "token_ids": [], "finish_reason": "abort", "stop_reason": "the logits hold NaN"}
        self.output.write_text("".join(json.dumps({**aborted, "index": i}) + "\n" for i in (0, 2)))
        result = run(*self.generate("--resume", "-q"))
        self.assertEqual(result.returncode, 3)
        self.assertIn("nanovllm: 2 requests of an earlier run were refused or aborted;", result.stderr)
        self.source.write_text(json.dumps({"prompt": "Once", "sampling_params": {"max_tokens": 4}}))
        self.output.unlink()
        self.assertEqual([run(*self.generate("--resume")).returncode for _ in range(2)], [0, 0])

    def test_without_the_flag_results_are_replaced_and_that_is_said(self):
        said = f"nanovllm: {self.output} is written anew; --resume would go on behind what it has\n"
        self.output.write_text("of another run\n")
        self.source.write_text(json.dumps({"prompt": "Once", "sampling_params": {"max_tokens": 4}}))
        result = run(*self.generate())
        self.assertEqual((result.returncode, result.stderr), (0, said))
        self.assertEqual([line["index"] for line in lines(self.output.read_text())], [0])
        self.assertEqual(run(*self.generate("-q")).stderr, "")
        self.output.write_text("")
        self.assertEqual(run(*self.generate()).stderr, "")

    def test_other_files_are_left_alone(self):
        for text in ('{"index": 1}\nmine\n{"index": 2}\n', '[1]\n{"index": 2}\n', '{"index": "a"}\n{"index": 2}\n'):
            self.output.write_text(text)
            self.assert_one_sentence(run(*self.generate("--resume")), "is no result of an earlier run", status=1)
            self.assertEqual(self.output.read_text(), text)

    def assert_other_input_is_looked_for(self, text, taken):
        """Which is not there: outputs are looked at before."""
        self.output.write_text(text)
        self.source = self.path("none")
        self.assert_one_sentence(run(*self.generate("--resume")), "none: No such file" if taken else f"out.jsonl:{text[:-1].count(chr(10)) + 1} is no result of an earlier run")
        self.assertEqual(self.output.read_text(), text)

    def test_every_beginning_of_a_result_is_half_a_line(self):
        whole = '{"index":0,"text":"","token_ids":[1],"finish_reason":"stop"}\n'
        for line in ('{"index":12,"text":"a } b","token_ids":[1],"finish_reason":"stop","num_prompt_tokens":1}', '{"index":3,"error":"no {"}',
                     '{"index":3,"custom_id":"a","error":"no"}', '{"index":0,"outputs":[{"index":0,"text":"a"},{"index":1,"text":"b"}],"num_prompt_tokens":1}'):
            for size in range(0, len(line) + 1, 15 if SANITIZED else 2):
                with self.subTest(line[:size]):
                    self.assert_other_input_is_looked_for(whole + line[:size], taken=True)

    def test_a_last_line_of_anything_else_is_somebody_elses(self):
        whole = '{"index":0,"text":"","token_ids":[1],"finish_reason":"stop"}\n'
        for text in ("hello\n", "hello", "[]\n", "[]", "\n", '{"k": 1}\n', '{"index": 0}\n', '{"index":0}', '{"index":0,"name":"a"', '{"index":0,"custom_id":"a","x":1}',
                     '{"index":0,"text":"a"}}', '{"index":-1,"text":"a"}\n',
                     '{"index":18446744073709551615,"text":"a"}\n', '{"index":0,"outputs":[1]}\n', '{"index":0,"text":"a\n', '{"id":"batch_req_0","custom_id":"a","response":null,"error":{}}\n'):
            with self.subTest(text):
                self.assert_other_input_is_looked_for(text, taken=False)
                self.assert_other_input_is_looked_for(whole + text, taken=False)

    def test_a_result_of_another_input_loses_nothing(self):
        self.source.write_text(json.dumps({"prompt": "Once", "custom_id": "a"}) + "\n")
        for rest in ('{"index":1,"te', '{"index":1,"custom_id":"c","text":"half","token_ids":[1],"finish_reason":"abort"}\n'):
            text = '{"index":0,"custom_id":"b","text":"","token_ids":[1],"finish_reason":"stop"}\n' + rest
            self.output.write_text(text)
            self.assert_one_sentence(run(*self.generate("--resume")), f"cannot resume: {self.source}")
            self.assertEqual(self.output.read_text(), text)

    def test_nothing_to_do_is_said(self):
        self.source.write_text("")
        self.assertEqual(run(*self.generate()).stderr, f"nanovllm: nothing to do: {self.source} has no requests\n")
        self.source.write_text(json.dumps({"prompt": "Once", "sampling_params": {"max_tokens": 2}}))
        self.assertEqual(run(*self.generate("--resume", "-q")).returncode, 0)
        self.assertEqual(run(*self.generate("--resume")).stderr, f"nanovllm: nothing to do: all requests of {self.source} are answered\n")
        self.assertEqual(run(*self.generate("--resume", "-q")).stderr, "")

    def test_needs_files(self):
        for args, word in ((["--input", self.source], "--output"), (["--output", self.output, "-p", "Hi"], "--input"),
                           (["--input", self.source, "--output", "-"], "--output")):
            result = run("generate", MODEL, "--resume", *args)
            self.assertEqual(result.returncode, 2)
            self.assertIn(word, result.stderr)


if __name__ == "__main__":
    unittest.main()
