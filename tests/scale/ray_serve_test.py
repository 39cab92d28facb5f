"""examples/ray_serve: a model behind the real Ray Serve writes what the engine writes."""
import json
import os
import pathlib
import socket
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "examples/ray_serve")]
import ray  # noqa: E402
import text  # noqa: E402
from ray import serve  # noqa: E402
from ray_testing import started  # noqa: E402
from serve_testing import BINARY, MODEL, run_tests  # noqa: E402


class Example(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # of the actors
        started(lambda: ray.init(address="local", num_cpus=2, object_store_memory=150_000_000, include_dashboard=False, log_to_driver=False))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            cls.port = free.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": cls.port})
        serve.run(text.app({"model": MODEL}))

    @classmethod
    def tearDownClass(cls):
        serve.shutdown()
        ray.shutdown()

    def ask(self, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def test_it_writes_what_the_engine_writes(self):
        command = [BINARY, "generate", MODEL, "-q", "--json", "-p", "Once upon a time", "--temperature", "0", "--max-tokens", "40"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        written = json.loads(done.stdout)["text"]
        self.assertEqual(self.ask({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 40}), (200, written))

    def test_it_says_what_is_wrong(self):
        self.assertEqual(self.ask({"max_tokens": 40}), (400, "The request has no prompt.\n"))
        self.assertEqual(self.ask({"prompt": "Once", "max_tokens": -3}), (400, "max_tokens must be at least 1, got -3.\n"))
        self.assertEqual(self.ask([1])[0], 400)


if __name__ == "__main__":
    run_tests()
