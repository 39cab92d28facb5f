"""The cache of models that several users or programs have, through the real binary."""
import hashlib
import os
import pathlib
import re
import subprocess
import time
import unittest

from cli_testing import MODEL, SANITIZED, SideBySide, lines
from hub_cli_testing import DEMO, PART, HubTest, noise, without_progress
from hub_testing import failing, fill_cache, git_sha1

FALLS_BACK = "; the copy in the cache is used"
# A flock that grants a lock to whoever asks, as some file systems have it.
GRANTS_EVERYTHING = "int flock(int file, int how) { (void)file; (void)how; return 0; }"


class Shared(HubTest):
    """A cache that huggingface_hub filled."""

    def setUp(self):
        super().setUp()
        self.repository = self.hub.add("Own/Demo", DEMO)
        self.path_of_main = fill_cache(self.cache, "Own/Demo", DEMO, self.repository.revisions["main"])

    def assert_falls_back(self, *words, command=("pull",), name="Own/Demo", output=None, env=None):
        """Whatever the hub says, what is there is taken, and one line says why."""
        result = self.nanovllm(*command, name, *(["x"] if command == ("tokenize",) else []), env=env)
        self.assertEqual((result.returncode, result.stdout), (0, output or f"{self.path_of_main}\n"), result.stderr)
        warnings = without_progress(result.stderr)
        self.assertEqual(len(warnings), 1, result.stderr)
        for word in (*words, FALLS_BACK):
            self.assertIn(word, warnings[0])

    def test_its_use_needs_no_connection(self):
        fill_cache(self.cache, "Own/A-GGUF", {"a-Q8_0.gguf": b"x"}, "a" * 40, "main")
        newer = self.repository.commit({**DEMO, "config.json": DEMO["config.json"] + b"\n"})
        for revision in ("", "@" + self.path_of_main.name):  # of an older commit
            for private in (False, True):
                self.repository.private = private
                self.assertEqual(self.nanovllm("tokenize", "Own/Demo" + revision, "x").stderr, "")
        del self.hub.repositories["Own/Demo"]
        self.assertEqual(self.nanovllm("info", "Own/Demo").stderr, "")
        self.assertEqual({row["name"]: row["complete"] for row in lines(self.nanovllm("list", "--json").stdout)}, {"Own/Demo": True, "Own/A-GGUF:Q8_0": True})
        self.assertEqual(self.hub.requests, [])
        self.assertNotEqual(newer, self.path_of_main.name)

    def test_what_others_pulled_does_not_change_what_a_name_means(self):
        files = {"a-Q4_K_M.gguf": b"usual", "a-Q8_0.gguf": b"other"}
        commit = self.hub.add("Own/A-GGUF", files).revisions["main"]
        cached = fill_cache(self.cache, "Own/A-GGUF", {"a-Q8_0.gguf": b"other"}, commit) / "a-Q8_0.gguf"

        def opened(name):  # by a use: no bytes of these are a model
            result = self.nanovllm("info", name)
            self.assertEqual(result.returncode, 1)
            return re.search(r"/(a-\w+\.gguf)", result.stderr.splitlines()[-1]).group(1)

        self.assertEqual(opened("Own/A-GGUF:Q8_0"), "a-Q8_0.gguf")
        self.assertEqual(self.hub.requests, [])
        self.hub.faults = [failing("hub", "/api/", 429, None, {"Retry-After": "300"})]
        for command in ("info", "pull"):
            self.assertIn(FALLS_BACK, self.nanovllm(command, "Own/A-GGUF").stderr)
        self.assertEqual(self.pull("Own/A-GGUF"), cached)
        self.assertEqual(opened("Own/A-GGUF"), "a-Q8_0.gguf")
        self.hub.faults = []
        self.assertEqual(opened("Own/A-GGUF"), "a-Q4_K_M.gguf")
        commit = self.hub.add("Own/B-GGUF", {"a-Q5_0.gguf": b"x", "a-Q8_0.gguf": b"other"}).revisions["main"]
        fill_cache(self.cache, "Own/B-GGUF", {"a-Q8_0.gguf": b"other"}, commit)
        for command in (("info",), ("pull",)):  # what the hub says is an answer, no refusal
            self.refused("Own/B-GGUF: holds no GGUF file of type Q4_K_M", name="Own/B-GGUF", command=command)
        commit = self.hub.add("Own/C-GGUF", {"a-Q8_0.gguf": b"other"}).revisions["main"]
        fill_cache(self.cache, "Own/C-GGUF", {"a-Q8_0.gguf": b"other"}, commit)
        self.hub.forget()
        for num_requests in (1, 1):  # that it is the only one is asked once
            self.assertEqual(opened("Own/C-GGUF"), "a-Q8_0.gguf")
            self.assertEqual(len(self.hub.requests), num_requests)

    def test_a_cache_that_only_others_may_write(self):
        pathlib.Path(self.folder.name).chmod(0o755)
        folders = [folder for folder, _, _ in os.walk(self.cache)]
        other = {"user": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        for folder in folders:
            os.chmod(folder, 0o555)
        try:
            self.assertEqual(self.nanovllm("tokenize", "Own/Demo", "x", **other).stderr, "")
            self.assertEqual(self.hub.requests, [])
            self.assertEqual(self.pull(**other), self.path_of_main)  # nothing has changed
        finally:
            for folder in folders:
                os.chmod(folder, 0o755)

    def test_a_pull_fetches_what_has_changed(self):
        self.assertEqual(self.pull(), self.path_of_main)
        changed = {**DEMO, "config.json": DEMO["config.json"] + b"\n"}
        commit = self.repository.commit(changed)
        path = self.pull()
        self.assertEqual((path.name, (path / "config.json").read_bytes()), (commit, changed["config.json"]))
        self.assertEqual([request.path.rsplit("/", 1)[1] for request in self.hub.of("hub", "resolve")], ["config.json"])
        self.assertEqual(self.hub.of("files"), [])

    def test_a_hub_that_refuses_or_is_not_there_falls_back_to_what_is(self):
        self.repository.private = True
        self.assert_falls_back("has nothing of that name, or not for us (\"Repository not found\"); no token was sent")
        self.hub.token = "hf_secret"
        self.assert_falls_back("Invalid credentials", "the token of HF_TOKEN was sent", env={"HF_TOKEN": "hf_old"})
        del self.hub.repositories["Own/Demo"]
        self.assert_falls_back("has nothing of that name")
        self.hub.faults = [failing("hub", "/api/", 429, None, {"Retry-After": "300"})]
        self.assert_falls_back("wants fewer requests")
        self.hub.close()
        self.assert_falls_back("can't be reached")
        self.refused("can't be reached", name="Own/Other")

    def test_a_hub_that_refuses_files_falls_back_too(self):
        self.repository.gated = True
        self.repository.commit({**DEMO, "config.json": DEMO["config.json"] + b"\n"})
        self.assert_falls_back("has it for those only who accept its owner's conditions")
        self.hub.faults = [failing("hub", "resolve", 404)]
        self.assert_falls_back("config.json")
        self.hub.faults = [lambda handler, request: (self.hub.send_json(handler, request, {"sha": 5}), True)[1]]
        self.refused("is HF_ENDPOINT that of a hub?")  # what answers is no hub that refuses

    def test_texts_that_nobody_reads_are_not_missed_when_they_are_refused(self):
        self.repository.commit({**DEMO, "vocab.json": b"{}"})
        commit = self.repository.revisions["main"]
        self.path_of_main = fill_cache(self.cache, "Own/Demo", DEMO, commit)
        self.repository.gated = True
        self.assert_falls_back("vocab.json: ", "conditions")
        self.hub.forget()
        self.assertEqual(self.nanovllm("tokenize", "Own/Demo", "x").stderr, "")
        self.assertEqual(self.hub.requests, [])

    def test_what_every_model_has_is_fetched_where_it_is_missing(self):
        for missing in ("config.json", "tokenizer.json"):
            (self.path_of_main / missing).unlink()
            self.hub.forget()
            self.assertEqual([row["complete"] for row in lines(self.nanovllm("list", "--json").stdout)], [False])
            self.assertEqual(self.nanovllm("tokenize", "Own/Demo", "x").returncode, 0)
            self.assertTrue((self.path_of_main / missing).exists())
            self.assertEqual(self.hub.of("files"), [])
        (self.path_of_main / "config.json").unlink()
        (self.path_of_main.parent.parent / "nanovllm" / f"{self.path_of_main.name}.json").unlink()
        (self.cache / "models--Own--Demo/blobs" / git_sha1(DEMO["config.json"])).unlink()
        self.repository.private = True
        output = self.nanovllm("tokenize", MODEL, "x").stdout
        self.assert_falls_back("has nothing of that name", command=("tokenize",), output=output)


class Locks(HubTest):
    """Where everybody is granted every lock."""

    def setUp(self):
        super().setUp()
        source, library = self.path("flock.c", GRANTS_EVERYTHING), self.path("flock.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        self.environment["LD_PRELOAD"] = str(library)
        if SANITIZED:
            self.environment["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
        self.content = noise(3 * PART)
        self.hub.add("Own/Big-GGUF", {"big.gguf": self.content})
        self.sha = hashlib.sha256(self.content).hexdigest()
        self.blob = self.cache / "models--Own--Big-GGUF/blobs" / self.sha

    def parts(self):
        return {name: size for name, size in self.blobs("Own/Big-GGUF").items() if name.endswith(".incomplete")}

    def pulls(self, count):
        """As many at once, each well on its way."""
        self.hub.speed = 10e6
        processes = [self.start("pull", "Own/Big-GGUF") for _ in range(count)]
        self.wait_until(lambda: sum(size > 1 << 20 for size in self.parts().values()) == count)
        return processes

    def test_each_process_writes_a_file_of_its_own(self):
        processes = self.pulls(3)
        self.wait_until(self.blob.exists)
        self.assertEqual(self.blob.read_bytes(), self.content)
        for process in processes:
            out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, pathlib.Path(out.strip()).read_bytes() == self.content), (0, True), err)
            self.assertEqual(self.blob.read_bytes(), self.content)
        self.assertEqual(self.blobs("Own/Big-GGUF"), {self.sha: len(self.content)})

    def test_what_came_damaged_to_one_gets_no_name(self):
        damaged = [0]

        def damage(handler, request):
            if request.server != "files" or damaged[0] == 2:
                return False
            damaged[0] += 1
            begin, end = map(int, request.range[6:].split("-"))
            body = bytearray(self.content[begin:end + 1])
            body[-1] ^= 1
            self.hub.send(handler, request, 206, bytes(body), {"Content-Range": f"bytes {begin}-{end}/{len(self.content)}"})
            return True

        self.hub.faults.append(damage)
        processes = [*self.pulls(2), self.start("pull", "Own/Big-GGUF")]
        outcomes = []
        for process in processes:
            while process.poll() is None:
                if self.blob.exists():
                    self.assertEqual(self.blob.read_bytes(), self.content)
                time.sleep(0.02)
            outcomes.append((process.returncode, "came with the hash" in process.stderr.read()))
            process.communicate()
        self.assertLessEqual(set(outcomes), {(0, False), (1, True)})
        self.assertIn((0, False), outcomes)
        self.assertEqual(self.blobs("Own/Big-GGUF"), {self.sha: len(self.content)})

    def test_what_ended_pulls_left_is_copied(self):
        for process in self.pulls(2):
            process.kill()
            process.communicate()
        left = self.parts()
        self.assertEqual(len(left), 2)
        self.hub.speed = None
        time.sleep(0.2)  # requests of before end
        self.hub.forget()
        self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), self.content)
        self.assertEqual(sum(request.sent for request in self.hub.of("files")), len(self.content) - max(left.values()))
        self.assertEqual(self.blobs("Own/Big-GGUF"), {self.sha: len(self.content)})

    def test_what_was_copied_goes_once_nobody_writes_it(self):
        for minutes, num_left in ((15, 3), (25, 1)):
            for process in self.pulls(2):
                process.kill()
                process.communicate()
            before = set(self.parts())
            for name in before:
                long_ago = time.time() - 60 * minutes
                os.utime(self.blob.parent / name, (long_ago, long_ago))
            process = self.start("pull", "Own/Big-GGUF")
            self.wait_until(lambda before=before: any(size > 5 << 20 for name, size in self.parts().items() if name not in before))
            process.kill()
            process.communicate()
            self.assertEqual(len(self.parts()), num_left, minutes)
            self.nanovllm("rm", "Own/Big-GGUF")

    def test_the_space_for_copies_is_counted(self):
        size, sha, hour = 4 * 10**12, "1" * 64, 3600
        self.hub.listing = lambda answer: {**answer, "siblings": [{**answer["siblings"][0], "size": size, "blobId": "1" * 40, "lfs": {"sha256": sha}}]}
        self.blob.parent.mkdir(parents=True)
        for name, age, come in ((f"{sha}.incomplete", hour, 0), (f"{sha}.nanovllm-0123456789abcdef.incomplete", 0, 0),
                                (f"{sha}.nanovllm-0123456789abcdef.incomplete", hour, 70000)):
            left = self.blob.parent / name
            left.write_bytes(noise(70000))
            os.utime(left, (time.time() - age, time.time() - age))
            self.refused(f"{size - come} bytes are still to come and the disk has", name="Own/Big-GGUF")
            left.unlink()

    def test_another_programs_file_stays_as_it_is(self):
        part = pathlib.Path(f"{self.blob}.incomplete")
        for left in (self.content[:PART], noise(PART, 2), noise(4 * PART, 2)):
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(left)
            self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), self.content)
            self.assertEqual(part.read_bytes(), left)
            self.nanovllm("rm", "Own/Big-GGUF")
            self.assertFalse(part.exists())


if __name__ == "__main__":
    unittest.main(testRunner=SideBySide)
