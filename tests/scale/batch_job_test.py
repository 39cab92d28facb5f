"""What a batch job reads and writes, without a cluster: columns of Parquet as lines, and outputs that runs left in every state."""
import datetime
import decimal
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import nanovllm.batch  # noqa: E402
import pyarrow  # noqa: E402
import ray  # noqa: E402
from nanovllm._batch_engine import placed  # noqa: E402
from nanovllm._batch_job import BatchError, Output, Plan, read_piece  # noqa: E402
from pyarrow import parquet  # noqa: E402
from serve_testing import run_tests  # noqa: E402

TEXTS = pyarrow.array(["a", "b"])


class FolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class Columns(FolderTest):
    def lines(self, common=None, **columns):
        path = str(self.folder / "in.parquet")
        parquet.write_table(pyarrow.table(columns), path)
        return [json.loads(line) for piece in Plan(path, 8).pieces for _, lines in read_piece(piece, common or {}) for line in lines]

    def refused(self, **columns):
        with self.assertRaises(BatchError) as caught:
            self.lines(**columns)
        return str(caught.exception).removeprefix(f"{self.folder}/in.parquet ")

    def test_a_name_may_be_of_any_type(self):
        bits = uuid.UUID(int=5).bytes
        for column, names in (
                (pyarrow.array([7, None]), ["7", "1"]),  # its place, where it has none
                (pyarrow.nulls(2), ["0", "1"]),
                (pyarrow.array([b"x", "\u00e9".encode()]), ["x", "\u00e9"]),
                (pyarrow.array([b"xy", b"zz"], pyarrow.binary(2)), ["xy", "zz"]),
                (pyarrow.array([1.5, 2.0]), ["1.5", "2.0"]),
                (pyarrow.array([decimal.Decimal(5), decimal.Decimal(6)]), ["5", "6"]),
                (pyarrow.array([datetime.datetime(2026, 1, 2)] * 2), ["2026-01-02 00:00:00"] * 2),
                (pyarrow.array([bits, bits], pyarrow.uuid()), ["00000000-0000-0000-0000-000000000005"] * 2)):
            with self.subTest(column.type):
                self.assertEqual([line["custom_id"] for line in self.lines(custom_id=column, prompt=TEXTS)], names)

    def test_texts_may_be_stored_in_any_way(self):
        for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.binary(), pyarrow.large_binary(),
                     pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
            with self.subTest(kind):
                ids, urls = pyarrow.array(["x", "y"]).cast(kind), pyarrow.array(["/tokenize"] * 2).cast(kind)
                self.assertEqual(self.lines(custom_id=ids, url=urls, prompt=TEXTS.cast(kind), body=pyarrow.array(['{"n": 1}', None]).cast(kind)), [
                    {"custom_id": "x", "method": "POST", "url": "/tokenize", "body": {"n": 1, "prompt": "a"}},
                    {"custom_id": "y", "method": "POST", "url": "/tokenize", "body": {"prompt": "b"}}])

    def test_bodies_and_messages_may_be_structures_or_text(self):
        said = [{"role": "user", "content": "Hi"}]
        pairs = pyarrow.list_(pyarrow.map_(pyarrow.string(), pyarrow.binary()))
        for messages in (pyarrow.array([[{"role": "user", "content": "Hi", "name": None}]]), pyarrow.array([json.dumps(said)]),
                         pyarrow.array([json.dumps(said).encode()]), pyarrow.array([[[("role", b"user"), ("content", b"Hi")]]], pairs)):
            with self.subTest(messages.type):
                (line,) = self.lines(messages=messages, body=pyarrow.array([{"seed": 3, "stop": ["a"], "temperature": None}]))
                self.assertEqual((line["url"], line["body"]), ("/v1/chat/completions", {"seed": 3, "stop": ["a"], "messages": said}))
        (line,) = self.lines({"max_tokens": 4}, prompt=pyarrow.array([[5, 6]]))
        self.assertEqual((line["url"], line["body"]), ("/v1/completions", {"max_tokens": 4, "prompt": [5, 6]}))

    def test_what_is_no_body_is_left_to_the_engine(self):
        self.assertEqual([line["body"] for line in self.lines(body=pyarrow.array([5, None]))], [5, {}])
        self.assertEqual([line["body"] for line in self.lines(body=pyarrow.array(["prompt", "{oops"]))], ["prompt", "{oops"])

    def test_a_prompt_that_is_null_is_missed_where_prompts_are_taken(self):
        lines = self.lines(prompt=pyarrow.array(["a", None, None]), body=pyarrow.array([None, None, '{"messages": []}']))
        self.assertEqual([(line["url"], line["body"]) for line in lines], [
            ("/v1/completions", {"prompt": "a"}), ("/v1/completions", {}), ("/v1/chat/completions", {"messages": []})])

    def test_columns_that_are_not_read_are_known(self):
        path = str(self.folder / "in.parquet")
        parquet.write_table(pyarrow.table({"max_tokens": [3], "prompt": ["a"], "answer": ["b"]}), path)
        self.assertEqual(Plan(path, 8).ignored, {"answer", "max_tokens"})
        self.assertEqual(self.refused(prompt=TEXTS, messages=TEXTS), "must have one of the columns messages and prompt, it has both")

    def test_a_relative_input_is_read_from_any_folder(self):
        (self.folder / "in.jsonl").write_text('{"custom_id": "a"}\n')
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        plans = Plan("in.jsonl", 8), Plan(".", 8)
        os.chdir("/")
        for plan in plans:
            (piece,) = plan.pieces
            self.assertEqual([lines for _, lines in read_piece(piece, {})], [[b'{"custom_id": "a"}']])

    def test_an_answer_has_its_place_and_no_line_of_its_engine(self):
        told = (b'{"id":"batch_req_%d","custom_id":null,"response":null,"error":{"code":"invalid_json_line","message":'
                b'"the line: not valid JSON: parse error at%s column 7: last read: \'at line 3,\'"}}\n')
        self.assertEqual(placed(told % (5, b" line 6,"), 40), told % (40, b""))
        text = b'{"id":"batch_req_5","custom_id":"a","response":{"body":"parse error at line 3, column 1"},"error":null}\n'
        self.assertEqual(placed(text, 6), text.replace(b"req_5", b"req_6"))

    def test_what_is_neither_text_nor_json_is_a_sentence(self):
        told = "has among requests 0 to 1 a value that is neither a text nor JSON: "
        not_utf8 = "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
        bad = pyarrow.array([b"\xff", b"a"])
        for column in ("custom_id", "url", "body"):
            self.assertEqual(self.refused(prompt=TEXTS, **{column: bad}), told + not_utf8)
        self.assertEqual(self.refused(prompt=bad), told + not_utf8)
        unchecked = pyarrow.Array.from_buffers(pyarrow.string(), 2, bad.buffers())
        self.assertEqual(self.refused(prompt=unchecked), told + not_utf8)
        self.assertEqual(self.refused(prompt=pyarrow.array([datetime.date(2026, 1, 2)] * 2)), told + "2026-01-02 is a date")
        self.assertEqual(self.refused(body=pyarrow.array([{"n": decimal.Decimal(5)}] * 2)), told + "5 is a Decimal")
        self.assertEqual(self.refused(text=TEXTS), "must have a column body, messages or prompt, it has text")

    def test_other_content_is_another_input(self):
        digests = set()
        for middle in ("b1", "b2"):  # whose smallest, largest and length are the same
            path = str(self.folder / "in.parquet")
            parquet.write_table(pyarrow.table({"prompt": ["a", middle, "c"]}), path, compression="none", use_dictionary=False)
            digests.add(Plan(path, 8).digest)
        self.assertEqual(len(digests), 2)


class Outputs(FolderTest):
    JOB = {"input": "1f", "model": "m"}

    def setUp(self):
        super().setUp()
        self.path, self.job = self.folder / "out.jsonl", self.folder / "out.jsonl.job"

    def open(self, **changed):
        return Output(str(self.path), {**self.JOB, **changed})

    def write(self, *parts):
        """Each the letter of its number, twice that often as the number says."""
        with self.open() as output:
            for number in parts:
                output.write(number, b"%c" % (97 + number) * 2 * number + b"\n")

    def finished(self):
        with self.open() as output:
            return sorted(output.finished)

    def test_a_part_is_written_once(self):
        self.write(2, 1, 2)
        self.write(1, 3)
        self.assertEqual(self.path.read_text(), "cccc\nbb\ndddddd\n")
        self.assertEqual(self.finished(), [1, 2, 3])
        with self.open() as output:
            output.write(4, b'{"id":"a","error":null}\n{"id":"b","error":null}\n{"id":"c","error":{}}\n')
            self.assertEqual((output.num_answers, output.num_errors), (6, 4))
        with self.open() as output:
            self.assertEqual((output.num_answers, output.num_errors), (6, 4))

    def test_a_part_of_parquet_that_is_gone_is_written_again(self):
        self.path = self.folder / "out.parquet"
        answer = b'{"id":"batch_req_0","custom_id":"a","response":{"status_code":200,"body":{"n":[1]}},"error":null}\n'
        refused = b'{"id":"batch_req_1","custom_id":null,"response":null,"error":{"code":"invalid_json_line"}}\n'
        with self.open() as output:
            output.write(0, answer)
            output.write(1, refused)
        (self.path / "part-000001.parquet").unlink()
        self.assertEqual(self.finished(), [0])
        with self.open() as output:
            output.write(1, refused)
        with self.open() as output:
            self.assertEqual((output.num_answers, output.num_errors), (2, 1))
        self.assertEqual(parquet.read_table(self.path).to_pylist(), [
            {"id": "batch_req_0", "custom_id": "a", "status_code": 200, "body": '{"n": [1]}', "error": None},
            {"id": "batch_req_1", "custom_id": None, "status_code": None, "body": None, "error": '{"code": "invalid_json_line"}'}])

    def test_what_is_behind_the_last_named_part_is_cut(self):
        self.write(2, 1)
        with self.path.open("a") as file:
            file.write("half a")
        with self.job.open("a") as file:
            file.write('{"part": 7')
        self.write(3)
        self.assertEqual(self.path.read_text(), "cccc\nbb\ndddddd\n")
        self.assertEqual(self.finished(), [1, 2, 3])

    def test_parts_that_a_file_lost_are_not_taken_for_whole_when_it_has_grown_again(self):
        self.write(1, 2, 3)
        for size, left in ((9, [1, 2]), (7, [1]), (0, [])):  # bytes
            with self.subTest(size):
                self.path.unlink()
                self.job.unlink()
                self.write(1, 2, 3)
                os.truncate(self.path, size)
                self.assertEqual(self.finished(), left)
                self.write(5)  # 11 bytes, beyond where the second part ended
                self.assertEqual(self.finished(), [*left, 5])
        self.path.unlink()
        self.assertEqual(self.finished(), [])

    def test_every_place_where_a_run_may_have_been_killed(self):
        self.write(2, 1)
        whole, noted = self.path.read_bytes(), self.job.read_bytes()
        for size in range(0, len(noted) + 1, 3):
            for length in (0, 3, 5, 6, len(whole)):
                self.path.write_bytes(whole[:length])
                self.job.write_bytes(noted[:size])
                if b"\n" not in noted[:size]:
                    self.path.unlink()  # which is made behind the first line
                self.write(2, 1)
                self.assertEqual(sorted(self.path.read_bytes().splitlines()), [b"bb", b"cccc"])

    def test_of_several_at_once_one_has_it(self):
        for _ in range(20):
            together, told = threading.Barrier(8), []

            def begin():
                together.wait()
                try:
                    with self.open() as output:
                        together.wait()
                        output.write(1, b"a\n")
                except BatchError as error:
                    told.append(str(error))
                    together.wait()

            threads = [threading.Thread(target=begin) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(told, [f"{self.path} is being written by another run"] * 7)
            self.assertEqual(self.path.read_text(), "a\n")
            self.path.unlink()
            self.job.unlink()

    def test_what_is_of_something_else_is_left_as_it_is(self):
        self.path.write_text("mine\n")
        with self.assertRaisesRegex(BatchError, "is the output of something else"):
            self.open()
        self.assertEqual(os.listdir(self.folder), ["out.jsonl"])
        for noted in ('{"what": "mine"}\n', '{"what": "mine"}\n[1]\n', "mine\n", "[1]\n", '{"what": "mine"}\n{"part": 1}\nhalf'):
            self.job.write_text(noted)
            with self.assertRaisesRegex(BatchError, "is no list of parts of"):
                self.open()
            self.assertEqual((self.path.read_text(), self.job.read_text()), ("mine\n", noted))
        self.path.unlink()
        self.job.unlink()
        self.write(1)
        with self.assertRaisesRegex(BatchError, "another job \\(not the same input and model\\); name"):
            self.open(input="2f", model="n")
        self.assertEqual(self.finished(), [1])

    def test_a_job_without_an_answer_gives_way_to_another(self):
        for path in (self.path, self.folder / "out.parquet"):
            with self.subTest(path.name):
                self.path, self.job = path, pathlib.Path(f"{path}.job")
                with self.open(model="wrong"):
                    pass
                noted = self.job.read_bytes()
                left = path / "part-000003.parquet" if path.is_dir() else path
                left.write_text("of a part that is not noted yet\n")
                with self.assertRaisesRegex(BatchError, "another job \\(not the same model\\); name"):
                    self.open()
                self.assertEqual((self.job.read_bytes(), left.read_text()), (noted, "of a part that is not noted yet\n"))
                if path.is_dir():
                    left.unlink()
                else:
                    os.truncate(left, 0)
                with self.open():
                    pass
                self.assertEqual(json.loads(self.job.read_text()), self.JOB)
                self.job.write_text("")  # where it was killed in between
                with self.open(model="third"):
                    pass
                self.assertEqual(json.loads(self.job.read_text()), {**self.JOB, "model": "third"})


class Commands(FolderTest):
    def told(self, *arguments, status, source="in.jsonl"):
        """On stderr, by a command that needs no cluster."""
        done = subprocess.run([sys.executable, "-c", "from nanovllm.batch import main; main()", source, *arguments, "--model", "m",
                               "--ray-address", "127.0.0.1:1"], cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
        return done.stderr.removeprefix("nanovllm-batch: ")

    def test_wrong_usage_has_status_2(self):
        (self.folder / "in.jsonl").write_text("{}\n")
        self.assertRegex(self.told("out.txt", status=2), r"^out.txt must end in .*\n$")
        self.assertEqual(self.told("out.jsonl", "--concurrency", "0", status=2), "the concurrency must be at least 1, got 0\n")
        self.assertEqual(self.told("out.jsonl", "--part-size", "0", status=2), "the part size must be at least 1, got 0\n")
        self.assertEqual(self.told("out.jsonl", "--body", '{"n": 1}', status=2),
                         "body is for rows of Parquet, and in.jsonl has JSON lines; what their bodies have in common stands in each\n")
        for body in ("{bad", "[1]"):
            self.assertIn(f"argument --body: must be a JSON object, got {body}\n", self.told("out.jsonl", "--body", body, status=2))
        self.assertEqual(os.listdir(self.folder), ["in.jsonl"])
        self.assertIn("there is no such file", self.told("out.jsonl", status=1, source="nothing.jsonl"))

    def test_where_nothing_is_to_do_a_line_says_so(self):
        (self.folder / "in.jsonl").write_text("\n")
        self.assertEqual(self.told("out.jsonl", status=0), "nothing to do: in.jsonl has no requests\n")
        self.assertEqual(self.told("out.jsonl", "-q", status=0), "")
        (self.folder / "in.jsonl").write_text("{}\n")
        job = {"input": Plan(str(self.folder / "in.jsonl"), 256).digest, "model": "m", "flags": [], "body": {}, "part size": 256}
        with Output(str(self.folder / "done.jsonl"), job) as output:
            output.write(0, b'{"error":{}}\n')
        self.assertEqual(self.told("done.jsonl", status=3), "nothing to do: all requests of in.jsonl are answered\n"
                         "nanovllm-batch: 1 of 1 answers are errors; done.jsonl says why\n")

    def test_columns_that_are_not_read_are_named(self):
        parquet.write_table(pyarrow.table({"max_tokens": pyarrow.array([], pyarrow.int32()), "prompt": pyarrow.array([], pyarrow.string())}),
                            self.folder / "in.parquet")
        self.assertEqual(self.told("out.jsonl", "-q", status=0, source="in.parquet"),
                         "not read of in.parquet: max_tokens; fields of a body stand in the column body\n")

    def test_what_engines_ask_for_and_how_many_have_room(self):
        for nodes, asked, found in (([{"CPU": 4}, {"CPU": 2}], (None, None), (2, 0, 3)), ([{"CPU": 4, "GPU": 2}, {"CPU": 2}], (None, None), (1, 1, 2)),
                                    ([{"CPU": 4}, {}], (0, 0), (0, 0, 2)), ([{"CPU": 4}, {"CPU": 3}], (1.5, None), (1.5, 0, 4))):
            alive = [{"Alive": True, "Resources": node} for node in nodes]
            with self.subTest(nodes), unittest.mock.patch.object(ray, "nodes", return_value=[*alive, {"Alive": False, "Resources": {"CPU": 9}}]):
                self.assertEqual(nanovllm.batch._room(*asked), found)

    def test_a_cluster_that_may_want_a_token(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            for mode, hint in (({}, "; where it asks for a token, set RAY_AUTH_MODE=token"), ({"RAY_AUTH_MODE": "token"}, "")):
                environment = {key: value for key, value in os.environ.items() if key != "RAY_AUTH_MODE"}
                with (self.subTest(mode), unittest.mock.patch.dict(os.environ, {**environment, **mode}, clear=True),
                      unittest.mock.patch.object(ray, "init", side_effect=ConnectionError("Failed to connect\nmore")),
                      self.assertRaises(BatchError) as caught):
                    nanovllm.batch._connect(address)
                self.assertEqual(str(caught.exception), f"no Ray cluster can be joined at {address}: Failed to connect{hint}")


if __name__ == "__main__":
    run_tests()
