"""Files, pipes and signals around the real binary."""
import ctypes
import json
import math
import os
import pathlib
import pty
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import time
import unittest

from cli_testing import BINARY, MODEL, SANITIZED, SMALL, CliTest, lines, run

LIBC = ctypes.CDLL(None)
SLOW = ["--device", "cpu", "--num-threads", "1"]  # with the portable kernels, which a step of 16,000 tokens occupies for long


def is_caught(process, number):
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"SigCgt:\s+(\w+)", status)[1], 16) >> (number - 1) & 1 == 1


def drop_rights():
    """Lets root do with files no more than their modes say; nobody else can do more."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        LIBC.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    LIBC.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())  # version 3, this process; nothing to inherit


class Streams(CliTest):
    def test_results_never_overwrite_the_requests(self):
        source = self.path("in.jsonl", '{"prompt": "Hi"}\n')
        result = run("generate", MODEL, "--input", source, "--output", source.parent / "." / "in.jsonl", *SMALL)
        self.assert_one_sentence(result, "in.jsonl", status=2)
        for flag in ("--output", "--trace"):
            with open(source) as requests:
                result = subprocess.run([BINARY, "generate", MODEL, "--input", "-", flag, source], stdin=requests,
                                        capture_output=True, text=True)
            self.assert_one_sentence(result, "in.jsonl is the file that --input reads", status=2)
        self.assertEqual(source.read_text(), '{"prompt": "Hi"}\n')

    def test_outputs_never_overwrite_what_the_run_reads(self):
        model = self.path("model")
        shutil.copytree(MODEL, model)
        (model / "additional_chat_templates").mkdir()
        self.path("blob.jinja", "{{ messages[0].content }}")
        (model / "additional_chat_templates" / "tool_use.jinja").symlink_to(self.path("blob.jinja"))
        self.path("link").symlink_to(model / "tokenizer.json")
        os.link(model / "model.safetensors", self.path("hard"))
        template, tools, talk = self.path("t.jinja", "{{ messages[0].content }}"), self.path("tools.json", "[]"), self.path("talk", "Hi\n")
        chat = ["chat", model, "--chat-template", template, "--tools", tools]
        files = [path for path in self.path(".").rglob("*") if path.is_file()]
        before = {path: path.read_bytes() for path in files}

        def refuse(command, output, word):
            with open(talk) as stdin:
                result = subprocess.run([BINARY, *map(str, [*command, output])], stdin=stdin, capture_output=True, text=True, timeout=300)
            self.assert_one_sentence(result, word, status=2)
            self.assertIn(str(output), result.stderr)

        for output in (model / "model.safetensors", model / "a" / ".." / "tokenizer.json", self.path("link"), self.path("hard"),
                       self.path("blob.jinja"), model / "additional_chat_templates" / "tool_use.jinja"):
            (model / "a").mkdir(exist_ok=True)
            for command in (["generate", model, "-p", "x", "--output"], ["generate", model, "-p", "x", "--trace"], [*chat, "--trace"],
                            ["bench", "throughput", model, "-q", "--num-prompts", "1", "--trace"], ["bench", "latency", model, "-q", "--trace"]):
                refuse(command, output, "is a file of the model")
        refuse([*chat, "--trace"], template, "--chat-template reads")
        refuse([*chat, "--trace"], tools, "--tools reads")
        refuse([*chat, "--trace"], talk, "standard input reads")
        self.assertEqual({path: path.read_bytes() for path in files}, before)
        new = model / "results.jsonl"
        result = run("generate", model, "-q", "-p", "x", "--output", new, "--trace", model / "trace.json", *SMALL)
        self.assertEqual((result.returncode, len(lines(new.read_text()))), (0, 1), result.stderr)

    def test_unreadable_files_are_told(self):
        # Before anything is loaded, and before anything is written over.
        older = self.path("older.jsonl", "kept")
        for source, why in (("/nonexistent.jsonl", "No such file"), ("/tmp", "Is a directory")):
            result = run("generate", "/no/model", "--input", source, "--output", older)
            self.assert_one_sentence(result, f"{source}: {why}")
        self.assertEqual(older.read_text(), "kept")
        folder = os.open("/tmp", os.O_RDONLY)
        self.addCleanup(os.close, folder)
        for command in (["generate", MODEL, "--input", "-"], ["tokenize", MODEL], ["chat", MODEL]):
            result = subprocess.run([BINARY, *command], stdin=folder, capture_output=True, text=True)
            self.assert_one_sentence(result, "Is a directory")
            self.assertEqual(result.stdout, "")

    def test_files_and_folders_without_permission_are_told(self):
        secret = self.path("secret", "x")
        secret.chmod(0)
        probe = subprocess.run(["cat", secret], capture_output=True, preexec_fn=drop_rights)
        self.assertNotEqual(probe.returncode, 0, "this user reads every file and can't give up that right: run the tests as another")
        model = self.path("model")
        shutil.copytree(MODEL, model)
        for locked, missing in ((model / "model.safetensors",) * 2, (model / "config.json",) * 2, (model, model / "config.json")):
            mode = locked.stat().st_mode
            locked.chmod(0)
            result = self.run_without_rights("generate", model, "-p", "x")
            self.assert_one_sentence(result, f"{missing}: no permission to read it")
            locked.chmod(mode)
        folder = self.path("folder")
        folder.mkdir(0o500)
        target = folder / "out.jsonl"
        result = self.run_without_rights("generate", "/no/model", "-p", "x", "--output", target)
        self.assert_one_sentence(result, f"cannot write results to {target}: Permission denied")
        source = self.path("in.jsonl", '{"prompt": "Hi"}\n')
        source.chmod(0)
        result = self.run_without_rights("generate", "/no/model", "--input", source)
        self.assert_one_sentence(result, f"cannot read requests from {source}: Permission denied")

    def run_without_rights(self, *args):
        """As one whose every file is his own and who may do with them only what their modes say, as root otherwise may not."""
        binary = self.path("nanovllm")
        if not binary.exists():  # the build folder may be another's
            shutil.copy(BINARY, binary)
        return subprocess.run([binary, *map(str, args)], capture_output=True, text=True, timeout=300, preexec_fn=drop_rights)

    def test_outputs_that_cannot_be_written_are_told(self):
        self.assert_one_sentence(run("generate", MODEL, "-q", "-p", "x", "--output", "/nonexistent/out", *SMALL), "/nonexistent/out")
        self.assert_one_sentence(run("generate", MODEL, "-q", "-p", "x", "--output", "/tmp", *SMALL), "directory")
        self.assert_one_sentence(run("generate", MODEL, "-q", "-p", "x", "--output", "/dev/full", *SMALL), "No space left")
        with open("/dev/full", "w") as full:
            result = subprocess.run([BINARY, "generate", MODEL, "-q", "-p", "x", *SMALL], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assert_one_sentence(result, "No space left")
        for command in (["info", MODEL], ["tokenize", MODEL, "x"], ["--version"], ["--help"], ["bench", "latency", "--help"],
                        ["chat", MODEL, "--max-tokens", "2", "-m", "x"]):
            with open("/dev/full", "w") as full:
                result = subprocess.run([BINARY, *command], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assert_one_sentence(result, "No space left")
        limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))}  # bytes
        self.assert_one_sentence(run("generate", MODEL, "-q", "-p", "x", "--output", self.path("out"), *SMALL, **limit), "File too large")
        short = ["--input-len", "8", "--output-len", "2"]
        for command in (["generate", MODEL, "-q", "-p", "x", *SMALL], ["chat", MODEL, "-m", "x", "--max-tokens", "2"],
                        ["bench", "latency", MODEL, "-q", *short], ["bench", "throughput", MODEL, "-q", "--num-prompts", "1", *short]):
            result = run(*command, "--trace", "/dev/full")
            self.assertEqual(result.returncode, 1, command)
            self.assertIn("/dev/full", result.stderr)

    def test_messages_that_nobody_can_read_cost_no_result(self):
        requests = self.path("requests.jsonl", '{"prompt": "Hi"}\nbad\n')
        closed = {"preexec_fn": lambda: os.close(2)}
        with open("/dev/full", "w") as full:
            for how in ({"stderr": full}, closed):
                output = self.path("results.jsonl")
                result = subprocess.run([BINARY, "generate", MODEL, "--input", requests, "--output", output, *SMALL], **how)
                self.assertEqual(result.returncode, 3, how)
                lines = output.read_text().splitlines()
                self.assertEqual(sorted("error" in json.loads(line) for line in lines), [False, True])
                self.assertEqual(subprocess.run([BINARY, "generate", "/nope", "-p", "a"], **how).returncode, 1)

    def test_a_trace_does_not_take_the_place_of_requests_or_results(self):
        requests = self.path("requests.jsonl", '{"prompt": "Hi"}\n')
        result = run("generate", MODEL, "--input", requests, "--trace", requests, *SMALL)
        self.assertEqual(result.returncode, 2)
        self.assertIn("is the file that --input reads", result.stderr)
        self.assertEqual(requests.read_text(), '{"prompt": "Hi"}\n')
        new = self.path("new.json")
        result = run("generate", MODEL, "--input", requests, "--trace", new, "--output", new, *SMALL)
        self.assertEqual(result.returncode, 2)
        self.assertIn("is the file that --output writes", result.stderr)
        self.assertFalse(new.exists())

    def test_a_dash_for_the_results_is_standard_output(self):
        result = run("generate", MODEL, "-q", "-p", "Hi", "--output", "-", *SMALL)
        self.assertEqual(json.loads(result.stdout)["index"], 0)

    def test_a_closed_pipe_ends_the_program_quietly(self):
        process = subprocess.Popen([BINARY, "generate", MODEL, "-q", "--input", "-", *SMALL], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.close()
        try:
            process.stdin.write('{"prompt": "x"}\n' * 50)
            process.stdin.close()
        except BrokenPipeError:
            pass
        self.assertEqual(process.stderr.read(), "")
        self.assertEqual(process.wait(timeout=300), -signal.SIGPIPE)
        process.stderr.close()

    def test_a_reader_of_messages_who_leaves_costs_no_result(self):
        source, target = self.path("in.jsonl", '{"prompt": "Hi"}\nbad\n' * 20), self.path("out.jsonl")
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run([BINARY, "generate", MODEL, "--input", source, "--output", target, *SMALL], stderr=writer)
        os.close(writer)
        self.assertEqual(result.returncode, 3)
        self.assertEqual(len(lines(target.read_text())), 40)

    def test_a_line_without_end_is_refused_and_the_others_go_on(self):
        long = b'{"prompt": "' + b"x" * (64 << 20)
        for end in (b'"}\n{"prompt": "Hi"}\n', b""):
            result = subprocess.run([BINARY, "generate", MODEL, "-q", "--input", "-", *SMALL], input=b"bad\n" + long + end, capture_output=True)
            self.assertEqual(result.returncode, 3)
            self.assertIn(b"nanovllm: standard input:2: the line is longer than 64 MiB\n", result.stderr)
            answers = sorted(lines(result.stdout.decode()), key=lambda answer: answer["index"])
            self.assertEqual(answers[1], {"index": 1, "error": "the line is longer than 64 MiB"})
            self.assertEqual(["text" in answer for answer in answers], [False, False, True][:3 if end else 2])

    def test_standard_input_has_a_limit(self):
        limit = 64 << 20  # bytes
        for command, what in ((["tokenize", MODEL], "standard input: longer than 64 MiB"),
                              (["chat", MODEL, *SMALL], "standard input: a line is longer than 64 MiB")):
            for data in ("/dev/zero", b" " * (limit + 1)):
                source = {"stdin": open(data)} if isinstance(data, str) else {"input": data}
                result = subprocess.run([BINARY, *command], capture_output=True, timeout=300, **source)
                self.assertEqual((result.returncode, result.stdout), (1, b""), result.stderr[:999])
                self.assertEqual(result.stderr.decode(), f"nanovllm: {what}\n")
                if isinstance(data, str):
                    source["stdin"].close()
        # A line of blanks says nothing, but may be as long as that.
        result = subprocess.run([BINARY, "chat", MODEL, *SMALL], input=b" " * limit + b"\nHi\n", capture_output=True, timeout=300)
        self.assertEqual((result.returncode, result.stderr.count(b"first after")), (0, 1), result.stderr[:999])
        result = subprocess.run([BINARY, "tokenize", MODEL, "--ids"], input=b" " * (limit - 1) + b"1", capture_output=True, timeout=300)
        self.assertEqual((result.returncode, result.stderr), (0, b""))

    def test_ctrl_c_ends_an_input_without_lines(self):
        source = subprocess.Popen(["sh", "-c", "echo bad; exec cat /dev/zero"], stdout=subprocess.PIPE)
        process = subprocess.Popen([BINARY, "generate", MODEL, "-q", "--input", "-", *SMALL], stdin=source.stdout, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        source.stdout.close()
        self.assertIn("standard input:1: ", process.stderr.readline())  # it reads its input now
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, error)
        source.wait(timeout=300)

    def test_who_has_it_ignore_closed_pipes_gets_a_sentence(self):
        reader, writer = os.pipe()
        os.close(reader)
        for command in (["generate", MODEL, "-q", "-p", "x", *SMALL], ["info", MODEL], ["--help"]):
            result = subprocess.run([BINARY, *command], stdout=writer, stderr=subprocess.PIPE, text=True,
                                    restore_signals=False)  # Python ignores SIGPIPE
            self.assert_one_sentence(result, "Broken pipe")
        os.close(writer)

    def test_a_background_job_of_a_script_does_not_hear_ctrl_c(self):
        ignore = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
        process = subprocess.Popen([BINARY, "generate", MODEL, "-q", "--input", "-", *SMALL], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True, **ignore)
        process.stdin.write('{"prompt": "Hi"}\n')
        process.stdin.flush()
        self.assertIn("text", json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate('{"prompt": "Hello"}\n', timeout=300)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(len(lines(out)), 1)

    def test_weights_cut_short_while_they_are_served_are_told(self):
        broken = self.path("broken")
        shutil.copytree(MODEL, broken)
        process = subprocess.Popen([BINARY, "generate", broken, "-q", "--device", "cpu", "--input", "-", *SMALL], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdin.write('{"prompt": "Hi"}\n')
        process.stdin.flush()
        self.assertIn("text", json.loads(process.stdout.readline()))
        os.truncate(broken / "model.safetensors", 4096)
        _, error = process.communicate('{"prompt": "Hello"}\n', timeout=300)
        self.assertEqual(process.returncode, 1, error)
        self.assertIn("cut short", error)
        self.assertEqual(error.count("\n"), 1, error)

    def test_ctrl_c_writes_what_is_done_so_far(self):
        target = self.path("out.jsonl")
        request = '{"prompt": "Once upon a time", "sampling_params": {"max_tokens": %d, "ignore_eos": true}}\n'
        source = self.path("in.jsonl", request % 4 + request % 2000 * 399)  # one is done soon, and the others are not
        process = subprocess.Popen([BINARY, "generate", MODEL, "--input", source, "--output", target, "--max-num-seqs", "8"],
                                   stderr=subprocess.PIPE, text=True)
        deadline = time.time() + 300
        while time.time() < deadline and (not target.exists() or target.stat().st_size == 0):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, error)
        results = lines(target.read_text())
        self.assertTrue(all(r["token_ids"] for r in results))
        done = sum(r["finish_reason"] == "length" for r in results)
        self.assertTrue(0 < done < 400, done)
        self.assertIn(f"nanovllm: interrupted: {done} done, {len(results) - done} cut short, {400 - len(results)} not begun\n", error)

    def test_ctrl_c_counts_what_was_not_begun_only_where_all_are_known(self):
        process = subprocess.Popen([BINARY, "generate", MODEL, "--input", "-", *SMALL], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        process.stdin.write('{"prompt": "Hi"}\n')
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)  # while more may come through the pipe
        self.assertEqual(process.wait(timeout=300), 130)
        _, error = process.communicate()
        self.assertIn("nanovllm: interrupted: 1 done, 0 cut short, no others begun\n", error)

    def test_ctrl_c_ends_a_benchmark_with_130(self):
        terminal, other_end = pty.openpty()
        # Steps are short and many.
        process = subprocess.Popen([BINARY, "bench", "throughput", MODEL, "--num-prompts", "64", "--input-len", "8", "--output-len", "2000"],
                                   stdout=subprocess.PIPE, stderr=other_end, text=True)
        os.read(terminal, 1)  # the bar
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
        self.assertEqual((process.returncode, out), (130, ""))
        os.close(terminal)
        os.close(other_end)

    def test_ctrl_c_while_a_model_is_loaded_is_told(self):
        model = self.path("model")
        shutil.copytree(MODEL, model)
        config = json.loads((model / "config.json").read_text())
        small, config["intermediate_size"] = config["intermediate_size"], 24576  # rounding that takes seconds
        (model / "config.json").write_text(json.dumps(config))
        data = (model / "model.safetensors").read_bytes()
        header, end = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]]), 0
        header.pop("__metadata__", None)
        for name, entry in header.items():
            if ".mlp." in name:
                entry["shape"] = [24576 if n == small else n for n in entry["shape"]]
            size = 2 * math.prod(entry["shape"])
            entry["data_offsets"], end = [end, end + size], end + size
        text = json.dumps(header).encode()
        with open(model / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)
        for command, *rest in (["info"], ["generate", "-p", "x"], ["chat", "-m", "x"]):
            process = subprocess.Popen([BINARY, command, str(model), *rest, "--quantization", "int4", "--num-threads", "1"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while process.poll() is None and not is_caught(process.pid, signal.SIGINT):
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=300)
            self.assertEqual((process.returncode, out), (130, ""), error)
            self.assertRegex(error.splitlines()[-1], "^nanovllm: interrupted")

    def interrupt_a_long_step(self, *command, ready=lambda: True):
        """What Ctrl-C gives in a step of many seconds: the time until the end, status and messages."""
        slow = {**os.environ, "NANOVLLM_CPU_ISA": "portable"}
        process = subprocess.Popen([BINARY, *map(str, command), *SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=slow)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and not (ready() and is_caught(process.pid, signal.SIGALRM)):
            time.sleep(0.05)
        time.sleep(1)  # in the step
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        out, error = process.communicate(timeout=300)
        self.assertLess(time.monotonic() - start, 5 if SANITIZED else 1)
        self.assertEqual((process.returncode, out), (130, ""))
        self.assertEqual(error.splitlines()[-1], "nanovllm: interrupted; what was written is whole, and what was running is lost")

    def long_requests(self):
        """Prompts of which nobody can wait for another's beginning."""
        return "".join(json.dumps({"prompt_token_ids": [i] * 1000}) + "\n" for i in range(5, 21))

    def test_ctrl_c_ends_at_once_while_a_step_runs(self):
        target = self.path("out.jsonl")
        source = self.path("in.jsonl", "bad\n" * 3 + self.long_requests())  # what is refused is told before the step
        for resume in ([], ["--resume"]):
            self.interrupt_a_long_step("generate", MODEL, "--input", source, "--output", target, *resume,
                                       ready=lambda: target.exists() and target.read_text().count("\n") == 3)
            self.assertEqual([answer["index"] for answer in lines(target.read_text())], [0, 1, 2])
            self.assertTrue(target.read_text().endswith("}\n"))

    def test_ctrl_c_in_a_long_step_leaves_a_whole_trace(self):
        target, trace = self.path("out.jsonl"), self.path("trace.json")
        short = json.dumps({"prompt": "Hi", "sampling_params": {"max_tokens": 150, "ignore_eos": True}})  # steps of more than a flush
        source = self.path("in.jsonl", f"{short}\n" * 16 + self.long_requests())
        self.interrupt_a_long_step("generate", MODEL, "--input", source, "--output", target, "--trace", trace, "--max-num-seqs", "16",
                                   ready=lambda: target.exists() and target.read_text().count("\n") == 16)
        steps = [event for event in json.loads(trace.read_text()) if event.get("name") == "step"]
        self.assertGreater(len(steps), 10)

    def test_ctrl_c_ends_a_benchmark_while_a_step_runs(self):
        self.interrupt_a_long_step("bench", "latency", MODEL, "--batch-size", "16", "--input-len", "1000")

    def test_a_benchmark_of_any_length_fits_into_memory(self):
        terminal, other_end = pty.openpty()
        process = subprocess.Popen([BINARY, "bench", "throughput", MODEL, "--num-prompts", "1000000000", "--input-len", "8", "--output-len", "2"],
                                   stdout=subprocess.PIPE, stderr=other_end, text=True)
        os.read(terminal, 1)  # the bar
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
        os.close(terminal)
        os.close(other_end)
        self.assertEqual(process.returncode, 130)
        self.assertLess(int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]), 2 << 20)

    def test_requests_do_not_wait_for_those_behind_them(self):
        process = subprocess.Popen([BINARY, "generate", MODEL, "-q", "--input", "-", *SMALL], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for i in range(2):
            process.stdin.write('{"prompt": "Hi"}\n')
            process.stdin.flush()
            self.assertTrue(select.select([process.stdout], [], [], 300)[0], "no answer while the pipe is open")
            self.assertEqual(json.loads(process.stdout.readline())["index"], i)
        process.send_signal(signal.SIGINT)  # waiting for input that never comes
        self.assertEqual(process.wait(timeout=300), 130)
        process.stdin.close()
        process.stdout.close()

    def test_standard_input_pipes(self):
        result = run("generate", MODEL, "--input", "-", *SMALL, stdin='{"prompt": "Hi"}\n')
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(lines(result.stdout)), 1)


if __name__ == "__main__":
    unittest.main()
