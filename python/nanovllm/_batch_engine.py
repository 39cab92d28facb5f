"""One `nanovllm run-batch` as a filter: lines of several callers go in, each caller gets the answers to its own."""
from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

PROBE = b'{"custom_id": "", "method": "POST", "url": "/tokenize", "body": {"prompt": ""}}'
_LINE = re.compile(rb'("code":"invalid_json_line","message":"the line: not valid JSON: parse error at) line \d+,')
_NUMBER = re.compile(rb'\{"id":"batch_req_(\d+)"')
_TRIES = 3  # of a start, and of lines on which engines end


class EngineLost(RuntimeError):
    """An engine that could not be started, or that ended again and again."""


def command() -> str:
    """The command that was installed with this package, else the one that PATH has."""
    own = os.path.join(sysconfig.get_path("scripts"), "nanovllm")
    found = own if os.access(own, os.X_OK) else shutil.which("nanovllm")
    if found is None:
        raise EngineLost(f"there is no command nanovllm, neither at {own} nor on PATH; install the package nanovllm there")
    return found


class _Process:
    """A run-batch and its threads. Answers tell by their number which line they are to."""

    def __init__(self, arguments: Sequence[str], folder: str) -> None:
        self.ended = False
        self.reason = ""  # the last thing that it said
        self._open: dict[int, Future[bytes]] = {}
        self._numbers = itertools.count()
        self._writing = threading.Lock()
        self._process = subprocess.Popen(
            [command(), "run-batch", "-q", "-i", "-", "-o", "-", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder if os.path.isdir(folder) else None)
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()
        threading.Thread(target=self._read, daemon=True).start()

    def _hear(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self.reason = line.decode(errors="replace").strip()
            print(self.reason, file=sys.stderr, flush=True)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            found = _NUMBER.match(line)
            if found and line.endswith(b"\n"):  # else it was cut off by the end
                self._open.pop(int(found[1])).set_result(line)
        status = self._process.wait()
        self._hearing.join()
        with self._writing:
            self.ended = True
            self.reason = self.reason or f"run-batch ended with status {status}"
            for answer in self._open.values():
                answer.set_exception(EngineLost(self.reason))

    def ask(self, lines: Sequence[bytes]) -> list[Future[bytes]]:
        assert self._process.stdin
        answers: list[Future[bytes]] = [Future() for _ in lines]
        with self._writing:  # callers one behind the other, so that neighbours stay neighbours
            if self.ended:
                for answer in answers:
                    answer.set_exception(EngineLost(self.reason))
                return answers
            self._open.update((number, answer) for answer, number in zip(answers, self._numbers))
            with contextlib.suppress(OSError):  # where it ends meanwhile
                for line in lines:
                    self._process.stdin.write(line + b"\n")
                self._process.stdin.flush()
        return answers

    def close(self) -> None:
        self._process.kill()


class Engine:
    """A run-batch that is started again where it ends. Any number of threads may ask."""

    def __init__(self, arguments: Sequence[str], folder: str) -> None:
        self._arguments = arguments
        self._folder = folder
        self._starting = threading.Lock()
        self._process: _Process | None = None
        self.ask([PROBE])  # answered when the model is loaded

    def _running(self) -> _Process:
        with self._starting:
            if self._process is None or self._process.ended:
                self._process = _Process(self._arguments, self._folder)
            return self._process

    def ask(self, lines: Sequence[bytes]) -> list[bytes]:
        """The answers to request lines, in their order. Lines are written and answered once, but for those
        that had no answer when an engine ended."""
        answers: dict[int, bytes] = {}
        for pause in range(1, _TRIES + 1):
            process = self._running()
            left = [index for index in range(len(lines)) if index not in answers]
            for index, answer in zip(left, process.ask([lines[index] for index in left])):
                with contextlib.suppress(EngineLost):
                    answers[index] = answer.result()
            if len(answers) == len(lines):
                return [answers[index] for index in range(len(lines))]
            if pause < _TRIES:
                time.sleep(pause)  # what it held, a GPU's memory for one, may be given back a little later
        raise EngineLost(process.reason.removeprefix("nanovllm: "))

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


def placed(answer: bytes, place: int) -> bytes:
    """An answer with its line's place in the whole input, and without the number of the line in what its engine read."""
    return _LINE.sub(rb"\1", _NUMBER.sub(b'{"id":"batch_req_%d"' % place, answer, count=1), count=1)


def named(line: bytes, place: int) -> bytes:
    """A request line that has a custom_id, by which the engine draws: its place where it has none."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return line  # the engine says what is wrong with it
    if not isinstance(request, dict) or request.get("custom_id") is not None:
        return line
    return json.dumps({**request, "custom_id": str(place)}).encode()
