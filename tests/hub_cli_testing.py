"""What the tests of models by name share: the real binary with a hub and a home of its own."""
import contextlib
import os
import pathlib
import random
import re
import subprocess
import time

from cli_testing import BINARY, MODEL, CliTest, run
from hub_testing import Hub

DEMO = {path.name: path.read_bytes() for path in pathlib.Path(MODEL).iterdir()}
NEEDED = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
PART = 8 << 20  # bytes that one request asks for


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


def without_progress(stderr):
    """Its lines but those that only a slow machine or a busy hub gets."""
    return [line for line in stderr.splitlines() if not re.search(r"nanovllm: pulling|B \[|; trying again in", line)]


class HubTest(CliTest):
    def setUp(self):
        super().setUp()
        self.hub = Hub()
        self.addCleanup(self.hub.close)
        self.cache = self.path("home") / "hub"
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
        self.environment |= {"HF_HOME": str(self.path("home")), "HF_ENDPOINT": self.hub.url, "HOME": self.folder.name}

    def nanovllm(self, *args, env=None, runner=run, **kwargs):
        return runner(*args, env={**self.environment, **(env or {})}, cwd=self.folder.name, **kwargs)

    def start(self, *args, env=None):
        return subprocess.Popen([BINARY, *args], env={**self.environment, **(env or {})}, cwd=self.folder.name, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def pull(self, name="Own/Demo", **kwargs):
        result = self.nanovllm("pull", name, **kwargs)
        self.assertEqual(result.returncode, 0, result.stderr)
        return pathlib.Path(result.stdout.strip())

    def refused(self, *words, name="Own/Demo", status=1, env=None, command=("pull",)):
        result = self.nanovllm(*command, name, env=env)
        self.assertEqual(result.returncode, status, result.stderr)
        sentences = without_progress(result.stderr)
        self.assertEqual(len(sentences), 1, result.stderr)
        for word in words:
            self.assertIn(word, sentences[0])
        return sentences[0]

    def blobs(self, name="Own/Demo"):
        folder = self.cache / ("models--" + name.replace("/", "--")) / "blobs"
        sizes = {}
        for path in folder.iterdir() if folder.exists() else ():
            with contextlib.suppress(FileNotFoundError):  # a pull may rename it meanwhile
                sizes[path.name] = path.stat().st_size
        return sizes

    def wait_until(self, holds, seconds=30):
        deadline = time.monotonic() + seconds
        while not holds():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def interrupted_pull(self, name, how):
        """A pull that is ended when something has come; its process."""
        self.hub.speed = 4e6
        process = self.start("pull", name)
        self.wait_until(lambda: any(size > 1 << 20 for size in self.blobs(name).values()))
        process.send_signal(how)
        process.out, process.err = process.communicate(timeout=10)
        self.assertTrue(all(blob.endswith(".incomplete") for blob in self.blobs(name)), self.blobs(name))
        return process
