"""Batches on Ray: three nodes on this machine, of which actors, engines and a node die; answers are those of a single engine."""
import contextlib
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import pyarrow  # noqa: E402
import ray  # noqa: E402
from nanovllm.batch import BatchError, run  # noqa: E402
from pyarrow import parquet  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from ray_testing import started  # noqa: E402
from serve_testing import BINARY, MODEL, run_tests  # noqa: E402

OURS = f"of-test-{os.getpid()}"  # so that no engine of anybody else is killed
FLAGS = ["--max-model-len", "512", "--max-num-seqs", "4", "--kv-cache-memory", "64M", "--served-model-name", OURS]
NODE = {"num_cpus": 1, "object_store_memory": 150_000_000, "include_dashboard": False}
# By hand: NUM_PROMPTS=20000 TOKENS=4
NUM_PROMPTS, TOKENS = int(os.environ.get("NUM_PROMPTS", "200")), int(os.environ.get("TOKENS", "100"))


def request(i, **body):
    body = {"prompt": f"The number {i}", "max_tokens": TOKENS + i % 50, "ignore_eos": True, "temperature": 0.8 if i % 2 else 0, **body}
    return {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": body}


def texts(lines):
    """What each request got, by its place; each once."""
    found = {}
    for answer in map(json.loads, lines):
        assert answer["id"] not in found, answer["id"]
        response = answer["response"]
        found[answer["id"]] = answer["custom_id"], response and response["status_code"], response and [
            choice.get("text") or choice.get("message") for choice in response["body"].get("choices", [])]
    return found


def engines():
    """Processes of run-batch as filters, and the actors above them."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"/nanovllm") and OURS.encode() in words and words[words.index(b"-i") + 1] == b"-":
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def setUpModule():
    # A node that died refuses connections, and is missed after so many of these; one that is only busy has time to answer.
    check = {"health_check_period_ms": 500, "health_check_failure_threshold": 5, "health_check_timeout_ms": 60000}
    RayTest.cluster = Cluster()
    started(lambda: RayTest.cluster.add_node(wait=False, _system_config=check, **NODE))
    RayTest.nodes = [started(lambda: RayTest.cluster.add_node(wait=False, **NODE)) for _ in range(2)]
    RayTest.cluster.wait_for_nodes(timeout=300)


def tearDownModule():
    ray.shutdown()
    RayTest.cluster.shutdown()


class RayTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.source, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"

    def write(self, requests):
        self.source.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in requests))

    def single(self):
        """The answers of one engine."""
        path = self.folder / "single.jsonl"
        subprocess.run([BINARY, "run-batch", "-q", "-i", self.source, "-o", path, MODEL, *FLAGS], check=False, timeout=3000)
        return texts(path.read_text().splitlines())

    def run_here(self, source=None, output=None, **more):
        return run(str(source or self.source), str(output or self.output), ray_address=self.cluster.address, quiet=True,
                   **{"model": MODEL, "flags": FLAGS, "part_size": 8, **more})

    def command(self, *more, output=None):
        return [sys.executable, "-c", "from nanovllm.batch import main; main()", self.source, output or self.output, "--model", MODEL,
                "--ray-address", self.cluster.address, "--part-size", "8", "-q", *FLAGS, *more]

    def refused(self, **more):
        with self.assertRaises(BatchError) as caught:
            self.run_here(**more)
        return str(caught.exception)

    def num_answers(self):
        return self.output.read_bytes().count(b"\n") if self.output.exists() else 0

    def wait_for_answers(self, count):
        deadline = time.monotonic() + 300
        while self.num_answers() < count:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)


class Deaths(RayTest):
    expected = {}  # of all

    def write(self, count):
        super().write(request(i) for i in range(count))

    def assert_answered(self, count):
        self.assertEqual(texts(self.output.read_text().splitlines()), {f"batch_req_{i}": self.expected[f"batch_req_{i}"] for i in range(count)})

    def setUp(self):
        super().setUp()
        if not self.expected:
            self.write(NUM_PROMPTS)
            Deaths.expected = self.single()
            self.assertEqual(len(self.expected), NUM_PROMPTS)

    def test_an_engine_an_actor_and_a_node_die_and_nothing_is_lost_or_answered_twice(self):
        self.write(NUM_PROMPTS)
        died = []

        def kill():
            self.wait_for_answers(8)
            engine, _ = min(engines().items())
            os.kill(engine, signal.SIGKILL)
            self.wait_for_answers(24)
            _, actor = max(engines().items())
            self.assertIn("_Answers", pathlib.Path(f"/proc/{actor}/cmdline").read_text())
            os.kill(actor, signal.SIGKILL)
            self.wait_for_answers(64)
            self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)
            died.append(self.num_answers())

        killer = threading.Thread(target=kill)
        killer.start()
        done = self.run_here()
        killer.join()
        self.assertLess(died[0], NUM_PROMPTS)  # in the middle
        self.assertEqual(done, {"answers": NUM_PROMPTS, "errors": 0})
        self.assert_answered(NUM_PROMPTS)

    def test_a_job_that_is_killed_goes_on(self):
        self.write(100)
        first = subprocess.Popen(self.command(), stderr=subprocess.DEVNULL)
        self.wait_for_answers(16)
        first.kill()
        first.wait()
        with self.output.open("ab") as output:
            output.write(b'{"id":"batch_req_3","custom_id"')  # half an answer
        finished = len(pathlib.Path(f"{self.output}.job").read_text().splitlines()) - 1
        kept = self.output.read_bytes().splitlines()[:8]
        self.assertTrue(0 < finished < 13, finished)
        self.assertEqual(self.run_here(), {"answers": 100, "errors": 0})
        self.assertEqual(self.output.read_bytes().splitlines()[:8], kept)
        self.assert_answered(100)
        before = self.output.read_bytes()
        self.assertEqual(self.run_here(), {"answers": 100, "errors": 0})  # there is nothing left to do
        self.assertEqual(self.output.read_bytes(), before)

    def test_a_job_that_is_told_to_end_says_how_it_goes_on(self):
        self.write(100)
        command = [os.path.relpath(word, self.folder) if word in (self.source, self.output) else word for word in self.command()]
        with subprocess.Popen(command, cwd=self.folder, stderr=subprocess.PIPE, text=True) as first:  # nodes run elsewhere
            self.wait_for_answers(8)
            first.terminate()
            told = first.stderr.read()
        self.assertEqual(first.returncode, 130, told)
        self.assertTrue(told.endswith("nanovllm-batch: interrupted; the same command goes on\n"), told)
        self.assertNotIn("SIGTERM received", told)  # by Ray, and its stack

    def test_a_full_disk_loses_nothing(self):
        self.write(48)
        most, (_, highest) = 16000, resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, highest))
        try:
            told = self.refused(concurrency=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (highest, highest))
        self.assertRegex(told, r"^.*out.jsonl: File too large; .*out.jsonl keeps \d+ of 48 answers, and the same command goes on$")
        self.assertLessEqual(self.output.stat().st_size, most)
        self.assertGreater(int(re.search(r"keeps (\d+)", told)[1]), 0)
        self.assertEqual(self.run_here(concurrency=1), {"answers": 48, "errors": 0})
        self.assert_answered(48)


class Formats(RayTest):
    def test_lines_that_are_no_requests_have_their_error(self):
        self.write([request(0, max_tokens=5), "", "nonsense", {**request(1, max_tokens=5), "url": "/v1/embeddings"}, "  ",
                    {key: value for key, value in request(2, max_tokens=5).items() if key != "custom_id"}, request(0, max_tokens=5), "[" * 100000])
        with self.source.open("a") as source:
            source.write(json.dumps(request(5, max_tokens=5)))  # and no end of a line
        self.assertEqual(self.run_here(part_size=2, concurrency=1), {"answers": 7, "errors": 3})
        answers = texts(self.output.read_text().splitlines())
        single = self.single()
        self.assertEqual(answers.pop("batch_req_3")[0], "3")  # its place, where it has no name
        self.assertEqual(single.pop("batch_req_3")[0], None)
        self.assertEqual(answers, single)

    def test_parquet_comes_in_and_goes_out(self):
        messages = [[{"role": "system", "content": "Be brief.", "name": None}, {"role": "user", "content": f"Say {i}"}] for i in range(40)]
        rows = [{"custom_id": i, "messages": one, "body": {"max_tokens": 20 + i, "temperature": None if i % 2 else 0.0}}
                for i, one in enumerate(messages)]
        source, output = self.folder / "in.parquet", self.folder / "out.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), source, row_group_size=25)
        self.assertEqual(self.run_here(source, output, body={"max_tokens": 5, "seed": 3}, concurrency=1), {"answers": 40, "errors": 0})
        self.assertEqual(len(list(output.glob("part-*.parquet"))), 6)  # 25 and 15 rows by 8
        found = parquet.read_table(output)
        self.assertEqual(found.column_names, ["id", "custom_id", "status_code", "body", "error"])
        self.write({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": {
            "messages": [{key: value for key, value in message.items() if value is not None} for message in one], "seed": 3,
            "max_tokens": 20 + i, **({} if i % 2 else {"temperature": 0.0})}} for i, one in enumerate(messages))
        lines = [json.dumps({"id": row["id"], "custom_id": row["custom_id"], "response": {"status_code": row["status_code"], "body": json.loads(row["body"])}})
                 for row in found.to_pylist()]
        self.assertEqual(texts(lines), self.single())
        (output / "part-000002.parquet").unlink()  # is made again
        self.assertEqual(self.run_here(source, output, body={"max_tokens": 5, "seed": 3}, concurrency=1), {"answers": 40, "errors": 0})
        self.assertEqual(sorted(parquet.read_table(output)["id"].to_pylist()), sorted(found["id"].to_pylist()))


class BadInput(RayTest):
    def test_another_jobs_output_is_refused(self):
        self.write(request(i, max_tokens=3) for i in range(4))
        self.run_here(concurrency=1)
        before = self.output.read_bytes()
        self.assertIn("another job (not the same flags); name another output, or take it and", self.refused(flags=[*FLAGS, "--seed=1"]))
        self.write(request(i, max_tokens=3) for i in range(5))
        self.assertIn("another job (not the same input); name another output", self.refused())
        self.assertEqual(self.output.read_bytes(), before)

    def test_outputs_that_can_not_be(self):
        self.write([request(0)])
        alone = self.folder / "alone.jsonl"
        alone.write_text("mine\n")
        self.assertIn("is the output of something else", self.refused(output=alone))
        self.assertEqual(alone.read_text(), "mine\n")
        self.assertFalse(pathlib.Path(f"{alone}.job").exists())
        self.assertIn("must end in .jsonl, for a file of lines, or in .parquet", self.refused(output=self.folder / "out.csv"))
        self.assertEqual(self.refused(output=self.folder / "nowhere/out.jsonl"), f"{self.folder}/nowhere/out.jsonl.job: No such file or directory")
        self.assertIn("all of which is read; name an output elsewhere", self.refused(source=self.folder))
        (self.folder / "noted.jsonl.job").write_text('{"what": "my own"}\n[1]\n')
        self.assertIn("noted.jsonl.job is no list of parts of", self.refused(output=self.folder / "noted.jsonl"))

    def test_a_second_run_is_refused(self):
        self.write([*(request(i, max_tokens=3) for i in range(4)), "nonsense"])
        first = subprocess.Popen(self.command("--concurrency", "1"), stderr=subprocess.DEVNULL)
        while not self.output.exists():
            self.assertIsNone(first.poll())
            time.sleep(0.01)
        self.assertIn("is being written by another run", self.refused())
        self.assertEqual(first.wait(), 3)  # one of its answers is an error

    def test_what_the_cluster_has_not(self):
        self.write([request(0)])
        nodes = "; ".join(["1 CPU and 0 GPU"] * (1 + len(self.nodes)))
        self.assertEqual(self.refused(num_gpus=1, num_cpus=1),
                         f"no node of the cluster has the 1 CPU and 1 GPU that an engine asks for; its nodes have {nodes}")
        self.assertIn("has the 2 CPU that", self.refused(num_cpus=2))

    def test_a_model_that_a_node_can_not_open(self):
        self.write([request(0, max_tokens=3)])
        self.assertRegex(self.refused(model="/nowhere/model"), r"^on node [0-9a-f]{56} \([\d.]+\): /nowhere/model.*$")
        self.assertEqual(self.run_here(), {"answers": 1, "errors": 0})  # what failed left nothing to take away

    def test_numbers_that_make_no_sense(self):
        self.write([request(0)])
        self.assertEqual(self.refused(part_size=0), "the part size must be at least 1, got 0")
        self.assertEqual(self.refused(concurrency=0), "the concurrency must be at least 1, got 0")
        self.assertEqual(self.refused(num_cpus=-1), "the number of CPUs must be at least 0, got -1")
        self.assertEqual(self.refused(num_gpus=-0.5), "the number of GPUs must be at least 0, got -0.5")
        self.assertEqual(self.refused(body=[1]), "body must be a JSON object, got [1]")
        self.assertFalse(self.output.exists())

    def test_an_input_that_is_not_there(self):
        self.assertIn("can't be opened: there is no such file", self.refused(source=self.folder / "nothing.jsonl"))
        wrong = self.folder / "wrong.parquet"
        parquet.write_table(pyarrow.table({"text": ["a"]}), wrong)
        self.assertIn("must have a column body, messages or prompt, it has text", self.refused(source=wrong))
        wrong.write_bytes(b"nothing")
        self.assertIn("wrong.parquet can't be read: ", self.refused(source=wrong))

    def test_a_value_that_json_has_not(self):
        source = self.folder / "in.parquet"
        parquet.write_table(pyarrow.table({"prompt": ["a", "b"], "custom_id": [b"a", b"\xff"]}), source)
        self.assertIn("in.parquet has among requests 0 to 1 a value that is neither a text nor JSON: 'utf-8' codec can't", self.refused(source=source))

    def test_without_ray_the_extra_is_named(self):
        program = "import sys; sys.modules['ray'] = None; from nanovllm.batch import main; main()"
        done = subprocess.run([sys.executable, "-c", program, "a", "b.jsonl", "--model", "m"], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (1, "nanovllm-batch: the package ray is missing; the extra ray brings it: pip install '.[ray]' in nanovllm's folder\n"))

    def test_no_cluster(self):
        self.write([request(0)])
        done = subprocess.run([*self.command(), "--ray-address", "127.0.0.1:1"], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 1)
        self.assertIn("nanovllm-batch: no Ray cluster can be joined at 127.0.0.1:1: [Errno 111] Connection refused\n", done.stderr)


if __name__ == "__main__":
    run_tests()
