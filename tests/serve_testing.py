"""A server to test, and a client of a few lines that shows what really came over the wire."""
import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

BINARY = os.environ["NANOVLLM"]
SANITIZED = any(sanitizer in BINARY for sanitizer in ("asan", "tsan"))
# What takes a server long: the environment, and the tokens of a prompt. Sanitizers see to it by themselves.
SLOW_CPU, LONG = ({}, 300) if SANITIZED else ({"NANOVLLM_CPU_ISA": "portable"}, 2000)
MODEL = os.environ["NANOVLLM_MODEL"]
SMALL = ["--max-model-len", "512", "--max-num-seqs", "64", "--kv-cache-memory", "64M"]


class Server:
    """`nanovllm serve` on a free port. Its log is in `log()`."""

    def __init__(self, *args, model=MODEL, small=True, wait=True, environment=None, limits=None, before=(), command=None):
        """`limits`: pairs for setrlimit by resource; `before`: a program that starts it; `command`: another server."""
        self.file = tempfile.TemporaryFile("w+")
        command = command or [BINARY, "serve", model, "--port", "0", *(SMALL if small else [])]
        self.process = subprocess.Popen([*before, *command, *map(str, args)],
                                        stdin=subprocess.DEVNULL, stdout=self.file, stderr=self.file,
                                        env={**os.environ, **(environment or {})},
                                        preexec_fn=lambda: [resource.setrlimit(*limit) for limit in (limits or {}).items()])
        self.port = None
        if wait:
            self.wait_ready()

    def log(self):
        return os.pread(self.file.fileno(), 1 << 26, 0).decode()

    def wait_for(self, pattern, seconds=120):
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.log())):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no {pattern!r} in {self.log()[-1500:]!r}, exit {self.process.poll()}")
            time.sleep(0.01)
        return found

    def wait_ready(self):
        self.port = int(self.wait_for(r"listening on https?://[^\s]*:(\d+)").group(1))
        deadline = time.monotonic() + 120
        while self.get("/health").status != 200:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"not ready: {self.log()[-1500:]!r}")
            time.sleep(0.05)

    def wait_restarts(self, count):
        """Until worker 0 was started again so many times: a dead one may still count as ready."""
        self.wait_for(rf"(?s)(Worker 0 is ready again.*){{{count}}}")

    def workers(self):
        """Ids of the worker processes that live."""
        found = []
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
                with open(f"/proc/{self.process.pid}/task/{task}/children", encoding="ascii") as children:
                    found += children.read().split()
        return sorted({int(pid) for pid in found})

    def connect(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        """The answer, with its text in `text` and, where it is JSON, its value in `json`."""
        connection = self.connect()
        text = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
        connection.request(method, path, text, {**({"Content-Type": "application/json"} if body is not None else {}), **(headers or {})})
        answer = connection.getresponse()
        answer.text = answer.read().decode()
        answer.json = json.loads(answer.text) if "json" in (answer.getheader("content-type") or "") else None
        connection.close()
        return answer

    def get(self, path, **kwargs):
        return self.request("GET", path, **kwargs)

    def post(self, path, body, **kwargs):
        return self.request("POST", path, body, **kwargs)

    def stream(self, path, body, headers=None):
        """Yields the data of the events of a streamed answer, the last one "[DONE]" as it is."""
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        if answer.status != 200:
            raise AssertionError(f"status {answer.status}: {answer.read()!r}")
        for line in answer:
            line = line.decode().rstrip("\n")
            if line.startswith("data: "):
                yield line[6:] if line[6:] == "[DONE]" else json.loads(line[6:])
            elif line and not line.startswith(":"):
                raise AssertionError(f"not an event: {line!r}")
        connection.close()

    def raw(self, data, seconds=10):
        """All that the server sends on a connection on which this is sent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(data)
            received = b""
            try:
                while piece := connection.recv(65536):
                    received += piece
            except (TimeoutError, ConnectionResetError):
                pass
        return received

    def metric(self, name, labels=""):
        """The sum of a metric's samples whose labels hold that text."""
        values = [float(line.split()[-1]) for line in self.get("/metrics").text.splitlines()
                  if re.match(re.escape(name) + r"[{ ]", line) and labels in line]
        return sum(values)

    def stop(self, how=signal.SIGTERM, seconds=60):
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(seconds)
        self.file.seek(0)
        return status

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.file.close()


class ServeTest(unittest.TestCase):
    def serve(self, *args, **kwargs):
        server = Server(*args, **kwargs)
        self.addCleanup(server.close)
        return server


def text_of(events):
    """A streamed completion's or chat's text."""
    text = ""
    for event in events:
        for choice in [] if event == "[DONE]" else event["choices"]:
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return text


def event_stream(server, path, body, headers=None):
    """Yields (name or None, data) of a stream's events; comments are passed over."""
    connection = server.connect()
    connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    if answer.status != 200:
        raise AssertionError(f"status {answer.status}: {answer.read()!r}")
    name = None
    for line in answer:
        line = line.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, line[6:] if line[6:] == "[DONE]" else json.loads(line[6:])
            name = None
        elif line and not line.startswith(":"):
            raise AssertionError(f"not an event: {line!r}")
    connection.close()


def in_parallel(count, work):
    """work(i) on threads of their own; the results in order. The first error is raised."""
    results, errors = [None] * count, []

    def run(i):
        try:
            results[i] = work(i)
        except BaseException as error:  # noqa: it is raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def run_tests(missing=()):
    """Runs a script's tests; the exit status is 77 where some are skipped, which is said by name."""
    program = unittest.main(exit=False)
    for name in missing:
        print(f"SKIPPED: {sys.argv[0]}: {name} is not there", file=sys.stderr)
    sys.exit(1 if not program.result.wasSuccessful() else 77 if program.result.skipped else 0)
