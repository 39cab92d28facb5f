"""Pulls through the real binary from a hub with every fault to order."""
import fcntl
import gzip
import hashlib
import os
import pathlib
import resource
import signal
import time
import unittest

from cli_testing import SideBySide
from hub_cli_testing import DEMO, NEEDED, PART, HubTest, noise
from hub_testing import failing, git_sha1

KEPT = "what has come is kept"


class Faults(HubTest):
    def test_names_that_leave_the_cache_are_refused(self):
        self.hub.add("Own/Demo", DEMO)
        for bad in ("../../x.json", "/etc/x.json", "a/../../x.json", "a//x.json", "..", ""):
            def with_bad(answer, bad=bad):
                return {**answer, "siblings": [*answer["siblings"], {"rfilename": bad, "size": 1, "blobId": "0" * 40}]}
            self.hub.listing = with_bad
            self.refused("lists a file named", "would leave the model's folder")
        for change in ({"sha": None}, {"siblings": None}, {"sha": "../../../x"}, {"sha": 5}, {"siblings": {}}, {"siblings": [{"rfilename": "config.json", "size": -1, "blobId": "0" * 40}]},
                       {"siblings": [{"rfilename": "config.json", "size": 1, "blobId": "../x"}]},
                       {"siblings": [{"rfilename": "m.gguf", "size": 1, "blobId": "0" * 40, "lfs": {"sha256": "../../../../x"}}]}):
            self.hub.listing = lambda answer, change=change: {**answer, **change}
            self.refused(f"Own/Demo: what {self.hub.url} answers")
        self.assertFalse(self.cache.exists())
        for name in ("Own/Demo@../../x", "Own/Demo@", "Own/Demo:", "Own/Demo:a:b", "Own/Demo@/x"):
            self.refused("a name of the hub is OWNER/MODEL", name=name, status=2)
        for name in ("../x", "/x/y", "x", "a/b/c", "Own/..", "a--b/c", "a/-b"):
            self.refused("not a name of the hub", name=name, status=2)

    def test_files_whose_names_cant_be_kept_are_left_where_they_are(self):
        odd = ["a\\x.json", "a\n.json", f"{'x' * 130}/{'y' * 130}.md", "\u009b31m.jinja"]
        self.hub.add("Own/Demo", {**DEMO, **{name: b"{}" for name in odd}})
        names = {file.name for file in self.pull().iterdir()}
        self.assertTrue(NEEDED <= names <= set(DEMO), names)
        self.hub.add("Own/A-GGUF", {"a\u009b31m-Q4_K_M.gguf": b"x", "b-Q8_0.gguf": b"y"})
        self.assertNotIn("\u009b", self.refused("holds no GGUF file of type Q4_K_M", name="Own/A-GGUF:Q4_K_M"))

    def test_a_busy_hub_is_asked_again(self):
        self.hub.add("Own/Demo", DEMO)
        self.hub.faults += [failing("hub", "/api/", 429, 1, {"Retry-After": "1"}), failing("hub", "config.json", 503, 2), failing("files", "", 403, 1)]
        begin = time.monotonic()
        self.pull()
        self.assertGreater(time.monotonic() - begin, 1)

    def test_a_hub_that_stays_busy(self):
        self.hub.add("Own/Demo", DEMO)
        self.hub.faults.append(failing("hub", "/api/", 429, None, {"Retry-After": "300"}))
        self.refused('wants fewer requests: status 429 ("ordered"); pull again in 300 s', KEPT)
        self.hub.faults = [failing("hub", "/api/", 503)]
        self.refused("can't be reached: status 503 (\"ordered\")", KEPT)
        self.assertEqual(len(self.hub.of("hub")), 1 + 5)

    def test_files_that_are_not_where_the_hub_sends_us_are_asked_for_once(self):
        self.hub.add("Own/Demo", DEMO)
        for status in (404, 410):
            self.hub.faults = [failing("files", "", status)]
            self.hub.forget()
            self.refused("model.safetensors", f"sends us to where it is not: status {status} of {self.hub.files_url}")
            self.assertEqual(len(self.hub.of("files")), 1)
        self.hub.faults = [lambda handler, request: (self.hub.send(handler, request, 404, b"x" * 100, {}, cut=1), True)[1]]
        self.refused("Own/Demo", "can't be reached: Transferred a partial file")
        self.hub.faults = [failing("hub", "resolve", 416)]
        self.assertNotIn("no token", self.refused("answers with status 416"))

    def test_a_mirror_that_tells_no_sizes_is_asked_for_the_tree(self):
        files = {**DEMO, "additional_chat_templates/tool_use.jinja": b"x", "notes.txt": b""}
        commit = self.hub.add("Own/Demo", files).revisions["main"]
        self.hub.listing = lambda answer: {**answer, "siblings": [{"rfilename": entry["rfilename"]} for entry in answer["siblings"]]}
        self.hub.page = 2
        path = self.pull()
        self.assertEqual(path.name, commit)
        for name in (*NEEDED, "additional_chat_templates/tool_use.jinja", "notes.txt"):
            self.assertEqual((path / name).read_bytes(), files[name])
        self.assertEqual(len(self.hub.of("hub", f"/api/models/Own/Demo/tree/{commit}")), (len(files) + 1) // 2)
        self.hub.forget()
        self.assertEqual(self.nanovllm("tokenize", "Own/Demo", "x").returncode, 0)
        self.assertEqual(self.hub.requests, [])
        self.nanovllm("rm", "Own/Demo")
        self.hub.faults = [failing("hub", "/tree/", 404, code="EntryNotFound")]
        self.refused(f'Own/Demo: the sizes of its files: {self.hub.url} has nothing of that name, or not for us ("ordered")')
        bad = ({}, [{"type": "file", "path": "../x", "oid": "0" * 40, "size": 1}], [{"type": "file", "path": "x.json", "oid": "0" * 40}],
               [{"type": "file", "path": "x.json", "oid": "../x", "size": 1}])
        for answer in bad:
            self.hub.faults = [lambda handler, request, answer=answer: "/tree/" in request.path and (self.hub.send_json(handler, request, answer), True)[1]]
            self.refused(f"Own/Demo: what {self.hub.url} answers")
        endless = {"Link": f'<{self.hub.url}/api/models/Own/Demo/tree/{commit}>; rel="next"'}
        self.hub.faults = [lambda handler, request: "/tree/" in request.path and (self.hub.send_json(handler, request, [], endless), True)[1]]
        self.refused("a list of files without an end")
        self.assertFalse((self.cache / "models--Own--Demo").exists())

    def test_a_hub_that_is_not_there(self):
        self.hub.close()
        self.refused(f"Own/Demo: {self.hub.url} can't be reached", "HF_ENDPOINT")
        self.refused("nothing may be pulled (HF_HUB_OFFLINE)", env={"HF_HUB_OFFLINE": "1"})
        self.refused("HF_ENDPOINT must be an address", env={"HF_ENDPOINT": "ftp://x"}, status=2)
        self.refused("can't be reached", env={"HF_ENDPOINT": "http://no-such-host.invalid"})
        shown = self.refused("http://127.0.0.1:9 can't be reached", env={"HF_ENDPOINT": "http://user:secret@127.0.0.1:9"})
        self.assertNotIn("secret", shown)

    def test_redirects(self):
        self.hub.add("Own/Demo", DEMO)
        self.hub.moved["Old/Demo"] = "Own/Demo"
        self.pull("Old/Demo")
        self.hub.moved = {"Own/Demo": "Own/Demo"}
        self.refused("Number of redirects hit maximum amount")

    def test_cut_connections_go_on_where_they_were_cut(self):
        content = noise(3 * PART + 12345)
        self.hub.add("Own/Big-GGUF", {"big.gguf": content})

        def cut(handler, request):
            if request.server != "files":
                return False
            begin, end = map(int, request.range[6:].split("-"))
            self.hub.send(handler, request, 206, content[begin:end + 1], {"Content-Range": f"bytes {begin}-{end}/{len(content)}"}, cut=3 << 20)
            return True

        self.hub.faults.append(cut)
        self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), content)
        self.assertEqual(sum(request.sent for request in self.hub.of("files")), len(content))

    def test_a_connection_that_ends_behind_the_last_byte(self):
        content = noise(1000)
        self.hub.add("Own/Big-GGUF", {"big.gguf": content})

        def unfinished(handler, request):
            if request.server != "files":
                return False
            handler.send_response(206)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.send_header("Content-Range", "bytes 0-999/1000")
            handler.end_headers()
            handler.wfile.write(b"3e8\r\n" + content + b"\r\n")  # and no chunk that says that it was the last
            handler.close_connection = True
            return True

        self.hub.faults.append(unfinished)
        self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), content)
        self.assertEqual(len(self.hub.of("files")), 1)

    def test_an_encoding_that_a_store_names_is_not_undone(self):
        content = gzip.compress(noise(1000))
        self.hub.add("Own/Big-GGUF", {"big.gguf": content})
        for encoding in ("gzip", "aws-chunked"):
            self.hub.faults = [lambda handler, request, encoding=encoding: request.server == "files" and
                               (self.hub.send_file(handler, request, content, {"Content-Encoding": encoding}), True)[1]]
            self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), content)
            self.nanovllm("rm", "Own/Big-GGUF")

    def test_a_file_comes_over_several_connections(self):
        content = noise(5 * PART)
        self.hub.add("Own/Big-GGUF", {"big.gguf": content})
        self.hub.speed = 20e6
        self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), content)
        self.assertEqual(sorted(request.range for request in self.hub.of("files")), sorted(f"bytes={i * PART}-{(i + 1) * PART - 1}" for i in range(5)))
        self.assertGreaterEqual(self.hub.most_answers["files"], 3)

    def test_a_server_that_takes_no_ranges(self):
        content = noise(2 * PART + 1)
        self.hub.add("Own/Big-GGUF", {"big.gguf": content})
        self.hub.takes_ranges = False
        self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), content)
        self.assertEqual(len(self.hub.of("files")), 1)
        self.nanovllm("rm", "Own/Big-GGUF")
        self.interrupted_pull("Own/Big-GGUF", signal.SIGKILL)
        self.hub.speed = None
        self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), content)

    def test_an_interrupted_pull_is_resumed(self):
        content = noise(2 * PART)
        self.hub.add("Own/Big-GGUF", {"big.gguf": content})
        for how in (signal.SIGINT, signal.SIGKILL):
            with self.subTest(how):
                process = self.interrupted_pull("Own/Big-GGUF", how)
                if how == signal.SIGINT:
                    self.assertEqual((process.returncode, process.out), (130, ""))
                    self.assertIn("nanovllm: interrupted; what has come is kept, and the next pull goes on from there\n", process.err)
                there, = self.blobs("Own/Big-GGUF").values()
                self.hub.speed = None
                time.sleep(0.2)  # requests of before end
                self.hub.forget()
                self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), content)
                self.assertEqual(sum(request.sent for request in self.hub.of("files")), len(content) - there)
                self.nanovllm("rm", "Own/Big-GGUF")

    def test_damage(self):
        content = noise(100000)
        self.hub.add("Own/Big-GGUF", {"big.gguf": content})
        sha = hashlib.sha256(content).hexdigest()
        self.pull("Own/Big-GGUF")
        blob = self.cache / "models--Own--Big-GGUF/blobs" / sha
        for there in (noise(5000, 2), noise(100000, 2), noise(200000, 2), content):  # what an earlier pull left
            blob.unlink(missing_ok=True)
            pathlib.Path(f"{blob}.incomplete").write_bytes(there)
            self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), content)
            self.assertEqual(set(self.blobs("Own/Big-GGUF")), {sha})
        for served, words in ((content[:-1], "has 99999 bytes where the hub's list has 100000"), (noise(100000, 3), "came with the hash")):
            blob.unlink()
            self.hub.faults = [lambda handler, request, served=served: request.server == "files" and (self.hub.send_file(handler, request, served, {}), True)[1]]
            self.refused("Own/Big-GGUF: big.gguf: ", words, "pull again", name="Own/Big-GGUF")
            self.assertNotIn(sha, self.blobs("Own/Big-GGUF"))
            self.hub.faults = []
            self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), content)
        self.hub.add("Own/Demo", DEMO)
        self.hub.faults = [lambda handler, request: request.path.endswith("/config.json") and
                           (self.hub.send_file(handler, request, DEMO["config.json"][::-1], {}), True)[1]]
        self.refused("Own/Demo: config.json: came with the hash", git_sha1(DEMO["config.json"]))

    def test_the_most_of_what_was_left_is_gone_on_with(self):
        content = noise(100000)
        self.hub.add("Own/Big-GGUF", {"big.gguf": content})
        sha = hashlib.sha256(content).hexdigest()
        blobs = self.cache / "models--Own--Big-GGUF/blobs"
        for shared, own in ((70000, 90000), (90000, 70000)):  # here locks hold, there they did not
            blobs.mkdir(parents=True, exist_ok=True)
            (blobs / f"{sha}.incomplete").write_bytes(content[:shared])
            (blobs / f"{sha}.nanovllm-0123456789abcdef.incomplete").write_bytes(content[:own])
            self.hub.forget()
            self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), content)
            self.assertEqual(set(self.blobs("Own/Big-GGUF")), {sha})
            self.assertEqual(sum(request.sent for request in self.hub.of("files")), 10000)
            self.nanovllm("rm", "Own/Big-GGUF")

    def test_a_full_disk(self):
        content = noise(PART)
        self.hub.add("Own/Big-GGUF", {"big.gguf": content})
        limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))}
        result = self.nanovllm("pull", "Own/Big-GGUF", **limit)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"/blobs/[0-9a-f]{64}.incomplete: can't be written: File too large; free some space, or set HF_HUB_CACHE")
        self.assertEqual(self.pull("Own/Big-GGUF").read_bytes(), content)
        self.hub.listing = lambda answer: {**answer, "siblings": [{**answer["siblings"][0], "size": 4 * 10**12, "blobId": "1" * 40, "lfs": {"sha256": "1" * 64}}]}
        self.refused("bytes are still to come and the disk has", name="Own/Big-GGUF")

    def test_a_cache_that_is_another_users(self):
        repository = self.hub.add("Own/Demo", DEMO)
        self.hub.add("Own/Other", DEMO)
        path = self.pull()
        pathlib.Path(self.folder.name).chmod(0o755)
        other = {"user": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        for folder, _, _ in os.walk(self.cache):
            os.chmod(folder, 0o555)
        try:
            self.assertEqual(self.pull(**other), path)  # what is there needs no writing
            result = self.nanovllm("pull", "Own/Other", **other)
            self.assertEqual(result.returncode, 1)
            self.assertIn("can't be written: Permission denied; set HF_HUB_CACHE to a folder that you may write to", result.stderr)
            os.chmod(self.cache, 0)
            result = self.nanovllm("list", **other)
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn("can't be read: Permission denied", result.stderr)
        finally:
            for folder in [self.cache, *(pathlib.Path(folder) for folder, _, _ in os.walk(self.cache))]:
                os.chmod(folder, 0o755)
            for folder, _, _ in os.walk(self.cache):
                os.chmod(folder, 0o755)
        self.assertEqual(repository.revisions["main"], path.name)

    def test_more_files_than_may_be_open(self):
        files = {f"{i}.json": str(i).encode() for i in range(300)}
        self.hub.add("Own/Demo", {**DEMO, **files})
        path = self.pull(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        self.assertTrue(all((path / name).read_bytes() == content for name, content in files.items()))

    def test_two_pulls_at_once_fetch_once(self):
        content = noise(PART)
        self.hub.add("Own/Big-GGUF", {"big.gguf": content, "same.gguf": content, "config.json": b"{}"})
        self.hub.speed = 10e6
        processes = [self.start("pull", "Own/Big-GGUF:big.gguf") for _ in range(3)]
        for process in processes:
            out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, pathlib.Path(out.strip()).read_bytes() == content), (0, True), err)
        self.assertEqual(sum(request.sent for request in self.hub.of("files")), len(content))

    def test_the_locks_are_those_of_huggingface_hub(self):
        self.hub.add("Own/Big-GGUF", {"big.gguf": b"x" * 100})
        sha = hashlib.sha256(b"x" * 100).hexdigest()
        locks = self.cache / ".locks/models--Own--Big-GGUF"
        locks.mkdir(parents=True)
        with open(locks / f"{sha}.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            process = self.start("pull", "Own/Big-GGUF")
            line = process.stderr.readline()
            self.assertIn("waiting for another program that pulls the same", line)
            self.assertEqual(self.hub.of("files"), [])
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0)

    def test_a_proxy(self):
        self.hub.add("Own/Demo", DEMO)
        self.hub.files_url = "http://files.invalid"
        proxies = []

        def through(handler, request):
            proxies.append(request.host)
            if request.host == "files.invalid":
                self.hub.answer_files(handler, request)
                return True
            return False

        self.hub.faults.append(through)
        self.pull(env={"HF_ENDPOINT": "http://hub.invalid", "http_proxy": self.hub.url})
        self.assertEqual(set(proxies), {"hub.invalid", "files.invalid"})


if __name__ == "__main__":
    unittest.main(testRunner=SideBySide)
