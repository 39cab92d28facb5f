"""What the tests of the real binary share."""
import concurrent.futures
import json
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

BINARY = os.environ["NANOVLLM"]
MODEL = os.environ["NANOVLLM_MODEL"]
# Sanitizers reserve terabytes of addresses.
SANITIZED = any(name in pathlib.Path(BINARY).read_bytes() for name in (b"__asan_init", b"__tsan_init"))
SMALL = ["--max-model-len", "512", "--max-tokens", "8", "--temperature", "0"]


def run(*args, stdin=None, **kwargs):
    return subprocess.run([BINARY, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=300, **kwargs)


def run_watched(*args, stdin=None, **kwargs):
    """With its messages on a terminal; `stderr` is what stands there in the end, `drawn` all that ever came. `stdin` is a text or a file."""
    terminal, other_end = pty.openpty()
    seen = []

    def watch():
        try:
            while data := os.read(terminal, 65536):
                seen.append(data)
        except OSError:
            pass  # nobody has the other end open any more

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        source = {"input": stdin} if stdin is None or isinstance(stdin, str) else {"stdin": stdin}
        result = subprocess.run([BINARY, *map(str, args)], stdout=subprocess.PIPE, stderr=other_end, text=True, timeout=300, **source, **kwargs)
    finally:
        os.close(other_end)
        watcher.join()
        os.close(terminal)
    result.drawn = b"".join(seen).decode().replace("\r\n", "\n")
    result.stderr = re.sub(r"[^\n]*\r\x1b\[K", "", result.drawn)
    return result


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


class SideBySide:
    """Runs tests that mostly wait several at a time, for unittest.main(testRunner=)."""

    def __init__(self, count=6):
        self.count = count

    def run(self, suite):
        def tests_of(entry):
            return [entry] if isinstance(entry, unittest.TestCase) else [test for part in entry for test in tests_of(part)]

        def outcome_of(test):
            outcome = unittest.TestResult()
            test.run(outcome)
            return outcome

        begin = time.monotonic()
        total = unittest.TestResult()
        with concurrent.futures.ThreadPoolExecutor(self.count) as pool:
            for outcome in pool.map(outcome_of, tests_of(suite)):
                total.testsRun += outcome.testsRun
                for kind in ("failures", "errors", "skipped", "unexpectedSuccesses"):
                    getattr(total, kind).extend(getattr(outcome, kind))
        for test, text in total.failures + total.errors:
            print(f"{test}\n{text}", file=sys.stderr)
        for test, reason in total.skipped:
            print(f"SKIPPED: {test}: {reason}", file=sys.stderr)
        print(f"{total.testsRun} tests in {time.monotonic() - begin:.1f} s, {len(total.failures) + len(total.errors)} failed", file=sys.stderr)
        return total


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name, content=None):
        path = pathlib.Path(self.folder.name) / name
        if content is not None:
            path.write_text(content)
        return path

    def assert_one_sentence(self, result, word, status=1):
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertIn(word, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)

    def model_without_logits(self):
        """The demo model with a final norm of NaN."""
        broken = self.path("nan")
        shutil.copytree(MODEL, broken)
        weights = bytearray((broken / "model.safetensors").read_bytes())
        size = struct.unpack("<Q", weights[:8])[0]
        begin, end = json.loads(weights[8:8 + size])["model.norm.weight"]["data_offsets"]
        weights[8 + size + begin:8 + size + end] = b"\xc0\x7f" * ((end - begin) // 2)  # bfloat16 NaN
        (broken / "model.safetensors").write_bytes(weights)
        return broken
