"""Models by name through the real binary: the cache, downloads and their faults, on a hub of our own."""
import fcntl
import gzip
import hashlib
import json
import os
import pathlib
import pwd
import random
import re
import resource
import signal
import subprocess
import threading
import time
import unittest

from cli_testing import BINARY, MODEL, SANITIZED, SMALL, CliTest, SideBySide, lines, run, run_watched
from hub_testing import Hub, failing, file_hash, fill_cache, git_sha1

DEMO = {path.name: path.read_bytes() for path in pathlib.Path(MODEL).iterdir()}
NEEDED = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
PART = 8 << 20  # bytes that one request asks for
KEPT = "what has come is kept"
FALLS_BACK = "; the copy in the cache is used"
# A flock that grants a lock to whoever asks, as some file systems have it.
GRANTS_EVERYTHING = "int flock(int file, int how) { (void)file; (void)how; return 0; }"


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


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
        sentences = [line for line in result.stderr.splitlines() if "nanovllm: pulling" not in line and "; trying again in" not in line]
        self.assertEqual(len(sentences), 1, result.stderr)
        for word in words:
            self.assertIn(word, sentences[0])
        return sentences[0]

    def blobs(self, name="Own/Demo"):
        folder = self.cache / ("models--" + name.replace("/", "--")) / "blobs"
        return {path.name: path.stat().st_size for path in folder.iterdir()} if folder.exists() else {}

    def wait_until(self, holds, seconds=30):
        deadline = time.monotonic() + seconds
        while not holds():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


class Names(HubTest):
    def test_a_model_is_pulled_when_it_is_first_used_and_needs_no_hub_after_that(self):
        self.hub.add("Own/Demo", DEMO)
        args = ("generate", "Own/Demo", "-q", "-p", "Once upon a time", *SMALL)
        result = self.nanovllm(*args)
        self.assertEqual((result.returncode, result.stdout), (0, run("generate", MODEL, "-q", "-p", "Once upon a time", *SMALL).stdout), result.stderr)
        self.hub.close()
        for env in ({}, {"HF_HUB_OFFLINE": "1"}):
            again = self.nanovllm(*args, env=env)
            self.assertEqual((again.returncode, again.stdout, again.stderr), (0, result.stdout, ""))
        for command in (("chat", "Own/Demo", "-m", "x", *SMALL), ("info", "Own/Demo"), ("tokenize", "Own/Demo", "x"),
                        ("bench", "latency", "Own/Demo", "--input-len", "4", "--output-len", "2", "--num-iters", "1", "--batch-size", "1")):
            result = self.nanovllm(*command)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn('"model":"Own/Demo"', self.nanovllm("info", "Own/Demo", "--json").stdout)

    def test_the_cache_is_laid_out_as_others_expect_it(self):
        repository = self.hub.add("Own/Demo", DEMO)
        commit = repository.revisions["main"]
        path = self.pull()
        own = self.cache / "models--Own--Demo"
        self.assertEqual(path, own / "snapshots" / commit)
        self.assertEqual((own / "refs" / "main").read_text(), commit)
        for name in NEEDED:
            sha = hashlib.sha256(DEMO[name]).hexdigest() if name.endswith(".safetensors") else git_sha1(DEMO[name])
            self.assertEqual(os.readlink(path / name), f"../../blobs/{sha}")
            self.assertEqual((path / name).read_bytes(), DEMO[name])
        self.assertEqual(json.loads((own / "nanovllm" / f"{commit}.json").read_text())["sha"], commit)

    def test_the_cache_is_where_other_programs_have_it(self):
        self.hub.add("Own/Demo", {"model.safetensors": b"x"})
        cases = (({"HF_HOME": "~/a"}, "a/hub"), ({"HF_HOME": "$X/b"}, "x/b/hub"), ({"HF_HUB_CACHE": "${X}/c$Y"}, "x/c$Y"), ({"HUGGINGFACE_HUB_CACHE": "$HOME/d"}, "d"),
                 ({"HF_HOME": "", "XDG_CACHE_HOME": "$HOME/e"}, "e/huggingface/hub"), ({"HF_HOME": ""}, ".cache/huggingface/hub"))
        for env, expected in cases:
            path = self.pull(env={"X": str(self.path("x")), **env})
            self.assertEqual(path.relative_to(self.folder.name).parts[:-3], pathlib.Path(expected).parts)

    def test_only_what_the_engine_reads_is_fetched(self):
        others = {"README.md": b"x", ".gitattributes": b"x", "pytorch_model.bin": b"x", "onnx/model.onnx": b"x", "consolidated.safetensors": b"x",
                  "original/params.json": b"x", "pytorch_model.bin.index.json": b"{}", "demo.gguf": b"x"}
        more = {"chat_template.jinja": b"x", "merges.txt": b"x", "additional_chat_templates/tool_use.jinja": b"x"}
        self.hub.add("Own/Demo", {**DEMO, **others, **more})
        path = self.pull()
        found = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
        self.assertEqual(found, {name for name in DEMO if name.endswith((".json", ".safetensors"))} | set(more))

    def test_of_a_sharded_model_the_shards_that_its_index_names(self):
        index = {"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors", "c": "part-1.safetensors"}}
        files = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode(), "part-1.safetensors": noise(100, 1),
                 "part-2.safetensors": noise(100, 2), "other.safetensors": noise(100, 3)}
        self.hub.add("Own/Sharded", files)
        path = self.pull("Own/Sharded")
        self.assertEqual({file.name for file in path.iterdir()}, set(files) - {"other.safetensors"})
        del self.hub.repositories["Own/Sharded"].commits[path.name]["part-2.safetensors"]
        self.nanovllm("rm", "Own/Sharded")
        self.refused("model.safetensors.index.json", "names a file part-2.safetensors, which the repository does not hold", name="Own/Sharded")

    def test_gguf_files_by_type(self):
        split = {f"Q8_0/big-Q8_0-0000{i}-of-00002.gguf": noise(50 + i) for i in (1, 2)}
        files = {"a-q4_k_m.gguf": noise(10), "a-UD-IQ2_XXS.gguf": noise(20), "a-BF16.gguf": noise(30), "mmproj-a-Q8_0.gguf": b"x", **split}
        self.hub.add("Own/A-GGUF", files)
        for name, path in (("Own/A-GGUF", "a-q4_k_m.gguf"), ("Own/A-GGUF:Q4_K_M", "a-q4_k_m.gguf"), ("Own/A-GGUF@main:bf16", "a-BF16.gguf"),
                           ("Own/A-GGUF:UD-IQ2_XXS", "a-UD-IQ2_XXS.gguf"), ("Own/A-GGUF:a-BF16.gguf", "a-BF16.gguf"),
                           ("Own/A-GGUF:Q8_0@main", "Q8_0/big-Q8_0-00001-of-00002.gguf")):
            found = self.pull(name)
            self.assertTrue(str(found).endswith("/" + path), found)
            self.assertEqual(found.read_bytes(), files[path])
        self.assertTrue((found.parent / "big-Q8_0-00002-of-00002.gguf").exists())
        self.assertEqual(self.hub.of("hub", "mmproj"), [])
        self.refused("Own/A-GGUF: holds no GGUF file of type Q5_0; name one after a colon, as in Own/A-GGUF:BF16: BF16, Q4_K_M, Q8_0, UD-IQ2_XXS",
                     name="Own/A-GGUF:Q5_0")
        self.hub.add("Own/Two-GGUF", {"a-Q4_K_M.gguf": b"a", "b-Q4_K_M.gguf": b"b"})
        self.refused("several GGUF files of type Q4_K_M", "Own/Two-GGUF:a-Q4_K_M.gguf: a-Q4_K_M.gguf, b-Q4_K_M.gguf", name="Own/Two-GGUF")
        self.assertEqual(self.pull("Own/Two-GGUF:b-Q4_K_M.gguf").read_bytes(), b"b")
        self.hub.add("Own/One-GGUF", {"whatever.gguf": b"one"})
        self.assertEqual(self.pull("Own/One-GGUF").read_bytes(), b"one")
        self.hub.add("Own/Old", {"pytorch_model.bin": b"x"})
        self.refused("Own/Old: holds neither model.safetensors nor its index nor a GGUF file", name="Own/Old")

    def test_revisions_with_signs_that_addresses_have(self):
        repository = self.hub.add("Own/Demo", DEMO)
        for revision in ("fix#1", "x?y", "a%20b", "a b", "a+b"):
            repository.revisions[revision] = repository.revisions["main"]
            self.pull(f"Own/Demo@{revision}")

    def test_revisions(self):
        repository = self.hub.add("Own/Demo", DEMO)
        first = repository.revisions["main"]
        repository.revisions["v1"] = repository.revisions["feature/x"] = first
        second = repository.commit({**DEMO, "config.json": DEMO["config.json"] + b"\n"})
        for revision, commit in (("v1", first), ("feature/x", first), (second, second), ("main", second)):
            self.assertEqual(self.pull(f"Own/Demo@{revision}").name, commit)
        self.refused(f"Own/Demo@v2: {self.hub.url} has no such revision", name="Own/Demo@v2")

    def test_a_pull_fetches_what_has_changed_and_a_use_does_not(self):
        repository = self.hub.add("Own/Demo", DEMO)
        first = self.pull()
        repository.commit({**DEMO, "config.json": DEMO["config.json"] + b"\n"})
        self.hub.forget()
        self.nanovllm("tokenize", "Own/Demo", "x")
        self.assertEqual(self.hub.requests, [])
        second = self.pull()
        self.assertNotEqual(first, second)
        self.assertEqual([request.path.rsplit("/", 1)[1] for request in self.hub.of("hub", "resolve")], ["config.json"])
        self.assertEqual(self.hub.of("files"), [])

    def test_paths_come_first_and_are_never_asked_for_at_the_hub(self):
        local = self.path("Own")
        local.mkdir()
        self.refused("Own/Demo: no such folder or file", "nanovllm pull Own/Demo", command=("info",))
        os.symlink(MODEL, local / "Demo")
        self.assertEqual(self.nanovllm("info", "Own/Demo").returncode, 0)
        self.assertEqual(self.hub.requests, [])
        (local / "Demo").unlink()
        self.hub.add("Own/Demo", DEMO)
        self.pull()
        self.assertEqual(self.nanovllm("info", "Own/Demo").returncode, 0)

    def test_addresses_of_pages_are_names(self):
        repository = self.hub.add("Own/Demo", DEMO)
        repository.revisions["v1"] = repository.revisions["main"]
        for address in ("https://huggingface.co/Own/Demo", "https://huggingface.co/Own/Demo/tree/v1", "hf.co/Own/Demo", "https://hf.co/Own/Demo/blob/main/config.json"):
            self.assertEqual(self.pull(address).name, repository.revisions["main"])
        self.assertIn('"model":"Own/Demo@v1"', self.nanovllm("info", "https://huggingface.co/Own/Demo/tree/v1", "--json").stdout)
        for address in ("https://example.com/Own/Demo", "https://huggingface.co/datasets/Own/Demo", "https://huggingface.co/docs/transformers",
                        "https://huggingface.co/datasets/squad", "https://hf.co/spaces/Own/tree/main"):
            for command in (("pull",), ("info",), ("rm",)):
                self.refused(f"{address}: not the address of a model, such as https://huggingface.co/Qwen/Qwen3-0.6B", name=address, status=2, command=command)
        self.assertIn("Own/Demo: removed", self.nanovllm("rm", "https://hf.co/Own/Demo").stdout)
        self.assertFalse((self.cache / "models--Own--Demo").exists())

    def test_rm_of_an_address_takes_away_no_more_than_that_names(self):
        repository = self.hub.add("Own/Demo", DEMO)
        first = repository.revisions["v1"] = repository.revisions["main"]
        self.pull("Own/Demo@v1")
        second = repository.commit({**DEMO, "config.json": DEMO["config.json"] + b"\n"})

        def commits(name="Own/Demo"):
            return sorted(path.name for path in (self.cache / f"models--{name.replace('/', '--')}/snapshots").iterdir())

        for name in ("Own/Demo@main", "https://huggingface.co/Own/Demo/tree/main", "hf.co/Own/Demo/commits/main"):
            self.pull()
            self.assertEqual(commits(), sorted([first, second]))
            for page in ("blob", "resolve", "raw"):
                address = f"https://huggingface.co/Own/Demo/{page}/main/config.json"
                self.refused(f"{address}: the address of a file that is no model of its own; Own/Demo would be all of the model, Own/Demo@main that revision of it",
                             name=address, command=("rm",), status=2)
            self.assertEqual(commits(), sorted([first, second]))
            self.assertEqual(self.nanovllm("rm", name).returncode, 0)
            self.assertEqual(commits(), [first])
        self.hub.add("Own/A-GGUF", {"a-Q4_K_M.gguf": b"a", "a-Q8_0.gguf": b"b"})
        left = self.pull("Own/A-GGUF")
        self.pull("Own/A-GGUF:Q8_0")
        self.assertEqual(self.nanovllm("rm", "https://huggingface.co/Own/A-GGUF/blob/main/a-Q8_0.gguf").returncode, 0)
        self.assertEqual([path.name for path in left.parent.iterdir()], [left.name])

    def test_a_type_of_a_repository_without_gguf_files(self):
        self.hub.add("Own/Demo", DEMO)
        self.refused("Own/Demo: holds safetensors and no GGUF file, of which Q4_K_M would be the type; leave :Q4_K_M away", name="Own/Demo:Q4_K_M")

    def test_without_a_home_the_cache_is_in_the_users_folder(self):
        for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME"):
            self.environment.pop(name, None)
        home = pwd.getpwuid(os.getuid()).pw_dir
        for env, cache in (({}, f"{home}/.cache/huggingface/hub"), ({"HOME": ""}, f"{home}/.cache/huggingface/hub"), ({"HF_HOME": "~/x"}, f"{home}/x/hub")):
            self.refused(f"not in the cache {cache}, ", env={"HF_HUB_OFFLINE": "1", **env}, name="Own/Surely-not-there")

    def test_a_server_is_named_as_it_was_asked_for(self):
        self.hub.add("Own/Demo", DEMO)
        from serve_testing import Server
        server = Server(model="Own/Demo", environment={**dict.fromkeys(os.environ, ""), **self.environment})
        self.addCleanup(server.close)
        model = server.get("/v1/models").json["data"][0]
        self.assertEqual(model["id"], "Own/Demo")
        self.assertIn("/models--Own--Demo/snapshots/", model["root"])


class Tokens(HubTest):
    def test_the_token_goes_to_the_hub_and_to_nobody_else(self):
        self.hub.token = "hf_secret"
        self.hub.add("Own/Demo", DEMO).private = True
        self.pull(env={"HF_TOKEN": " hf_secret\n"})
        self.assertEqual({request.token for request in self.hub.of("hub")}, {"Bearer hf_secret"})
        self.assertGreaterEqual(len(self.hub.of("files")), 2)
        self.assertEqual({request.token for request in self.hub.of("files")}, {None})

    def test_the_token_goes_along_where_the_hub_sends_us_to_itself(self):
        self.hub.token, self.hub.moves_files = "hf_secret", True
        self.hub.add("Own/Demo", {**DEMO, "vocab.json": noise(PART + 1)}).private = True
        self.pull(env={"HF_TOKEN": "hf_secret"})
        self.assertEqual({request.token for request in self.hub.of("hub")}, {"Bearer hf_secret"})
        self.assertEqual(len(self.hub.of("hub", "resolve-cache.*vocab.json")), 2)

    def test_the_token_of_hf_auth_login(self):
        self.hub.token = "hf_secret"
        self.hub.add("Own/Demo", DEMO).private = True
        self.path("home").mkdir()
        self.path("home/token", "hf_secret\n")
        self.pull()
        self.nanovllm("rm", "Own/Demo")
        self.refused('has nothing of that name, or not for us ("Invalid credentials in Authorization header"); the token of HF_TOKEN was sent',
                     env={"HF_TOKEN": "hf_other"})
        self.path("home/token", "hf_se\ncret: x")
        self.refused(f"{self.path('home/token')} holds no token of the hub", status=2)

    def test_refusals_say_what_to_do(self):
        self.hub.token = "hf_secret"
        repository = self.hub.add("Own/Demo", DEMO)
        repository.private = True
        self.refused(f"Own/Demo: {self.hub.url} has nothing of that name", "no token was sent: run hf auth login, or set HF_TOKEN")
        self.refused("Own/Nothing: ", "has nothing of that name", name="Own/Nothing", env={"HF_TOKEN": "hf_secret"})
        repository.private, repository.gated = False, True
        self.refused("Own/Demo: ", 'has it for those only who accept its owner\'s conditions, on its page there ("Access to model Own/Demo is restricted.")',
                     "hf auth login")
        self.hub.faults.append(failing("hub", "resolve", 403))
        self.refused('answers with status 403 ("ordered"); the token of HF_TOKEN was sent', env={"HF_TOKEN": "hf_secret"})
        self.hub.faults = [lambda handler, request: (self.hub.fail(handler, 403, "", "a\x1b[31m" + "x" * 1000), True)[1]]
        said = self.refused("a?[31mxxx", env={"HF_TOKEN": "hf_secret"})
        self.assertLess(len(said), 800)


class Certificates(HubTest):
    def setUp(self):
        super().setUp()
        self.hub.close()
        pem = self.path("hub.pem")
        made = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=hub",
                               "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", pem, "-out", self.path("certificate.pem")], capture_output=True)
        self.assertEqual(made.returncode, 0, made.stderr)
        pem.write_bytes(pem.read_bytes() + self.path("certificate.pem").read_bytes())
        self.hub = Hub(tls=pem)
        self.addCleanup(self.hub.close)
        self.environment |= {"HF_ENDPOINT": self.hub.url, "HF_TOKEN": "hf_secret"}
        self.trusted = {"SSL_CERT_FILE": str(self.path("certificate.pem"))}

    def test_a_hub_is_who_its_certificate_says(self):
        self.hub.token = "hf_secret"
        self.hub.add("Own/Small", {"config.json": b"{}", "a.jinja": b"x", "model.safetensors.index.json": b'{"weight_map": {}}'})
        self.refused("can't be reached: SSL", name="Own/Small")
        self.refused("can't be reached: SSL", name="Own/Small", env={**self.trusted, "HF_ENDPOINT": self.hub.url.replace("127.0.0.1", "localhost")})
        self.assertEqual(self.hub.requests, [])
        self.assertEqual((self.pull("Own/Small", env=self.trusted) / "a.jinja").read_bytes(), b"x")

    def test_from_https_it_goes_to_https_only(self):
        self.hub.token = "hf_secret"
        self.hub.add("Own/Demo", DEMO)
        self.refused("model.safetensors", "can't be reached: Unsupported protocol", env=self.trusted)
        self.assertEqual(self.hub.of("files"), [])


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
        self.assertNotIn("token", self.refused("answers with status 416"))

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

    def interrupted_pull(self, name, how):
        """A pull that is ended when something has come; its process."""
        self.hub.speed = 4e6
        process = self.start("pull", name)
        self.wait_until(lambda: any(size > 1 << 20 for size in self.blobs(name).values()))
        process.send_signal(how)
        process.out, process.err = process.communicate(timeout=10)
        self.assertTrue(all(blob.endswith(".incomplete") for blob in self.blobs(name)), self.blobs(name))
        return process

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
        warnings = [line for line in result.stderr.splitlines() if "; trying again in" not in line and "nanovllm: pulling" not in line]
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


class Display(HubTest):
    def test_lines_where_there_is_no_terminal(self):
        self.hub.add("Own/Demo", DEMO)
        result = self.nanovllm("pull", "Own/Demo")
        self.assertRegex(result.stderr, r"^nanovllm: pulling Own/Demo, 0 B of 15\.\d MB are there\nnanovllm: Own/Demo: 15\.\d MB in 00:0\d\n$")
        self.assertEqual(self.nanovllm("pull", "Own/Demo").stderr, "")
        self.nanovllm("rm", "Own/Demo")
        self.assertEqual(self.nanovllm("pull", "Own/Demo", "--quiet").stderr, "")

    def test_a_bar_on_a_terminal(self):
        self.hub.add("Own/Demo", DEMO)
        self.hub.speed = 8e6
        result = self.nanovllm("pull", "Own/Demo", runner=run_watched)
        self.assertRegex(result.drawn, r"Own/Demo █+░+ [\d.]+ MB/15\.\d MB \[[\d.]+ MB/s, 00:0\d left\]")
        self.assertRegex(result.stderr, r"^Own/Demo: 15\.\d MB in 00:0\d\n$")

    def test_list_and_rm(self):
        for flags in ([], ["--json"]):
            nothing = self.nanovllm("list", *flags)
            self.assertEqual((nothing.returncode, nothing.stdout), (0, ""))
            self.assertRegex(nothing.stderr, r"^nanovllm: no models in \S+; nanovllm pull Qwen/Qwen3-0\.6B fetches one\n$")
        repository = self.hub.add("Own/Demo", DEMO)
        self.hub.add("Own/A-GGUF", {"a-Q4_K_M.gguf": noise(1000), "a-Q8_0.gguf": noise(2500)})
        self.hub.add("Own/Big-GGUF", {"big.gguf": noise(2 * PART)})
        self.pull()
        self.pull("Own/A-GGUF")
        self.pull("Own/A-GGUF:Q8_0")
        Faults.interrupted_pull(self, "Own/Big-GGUF", signal.SIGINT)
        rows = lines(self.nanovllm("list", "--json").stdout)
        self.assertEqual([(row["name"], row["complete"]) for row in rows],
                         [("Own/A-GGUF:Q4_K_M", True), ("Own/A-GGUF:Q8_0", True), ("Own/Big-GGUF", False), ("Own/Demo", True)])
        self.assertEqual([row["bytes"] for row in rows[:2]], [1000, 2500])
        self.assertTrue(rows[0]["path"].endswith("/a-Q4_K_M.gguf"))
        self.assertIn("Own/A-GGUF:Q8_0     2.50 kB\n", self.nanovllm("list").stdout)
        self.assertRegex(self.nanovllm("list").stdout, r"Own/Big-GGUF +[\d.]+ MB  not complete: pull it again\n")
        removed = self.nanovllm("rm", "Own/A-GGUF:Q8_0")
        self.assertEqual((removed.returncode, removed.stdout), (0, "Own/A-GGUF:Q8_0: removed, 2.50 kB are free again\n"), removed.stderr)
        self.assertEqual(list(self.blobs("Own/A-GGUF").values()), [1000])
        first = repository.revisions["main"]
        repository.commit({**DEMO, "config.json": DEMO["config.json"] + b"\n"})
        self.pull()
        self.assertEqual([row["name"] for row in lines(self.nanovllm("list", "--json").stdout)][-2:], sorted(["Own/Demo", f"Own/Demo@{first}"],
                         key=lambda name: first if "@" in name else repository.revisions["main"]))
        (self.cache / "models--Own--Demo/refs/v1").write_text(first)
        self.nanovllm("rm", f"Own/Demo@{first}")
        self.refused(f"Own/Demo@{first}: not in the cache", name=f"Own/Demo@{first}", command=("rm",))
        self.assertEqual([str(path) for path in (self.cache / "models--Own--Demo").rglob("*") if first in path.name or path.name == "v1"], [])
        self.assertNotIn(git_sha1(DEMO["config.json"]), self.blobs())
        self.assertEqual(self.nanovllm("info", "Own/Demo", env={"HF_HUB_OFFLINE": "1"}).returncode, 0)
        self.nanovllm("rm", "Own/Demo", "Own/A-GGUF", "Own/Big-GGUF")
        self.assertEqual([path.name for path in self.cache.iterdir()], [".locks"])
        for name in ("Own/Demo", "Own/Demo@main", "Own/Demo:Q8_0"):
            self.refused(f"{name}: not in the cache", name=name, command=("rm",))
        self.refused("not a name of the hub", name="../x", command=("rm",), status=2)

    def freed(self, name):
        """What `rm` says, which is what the disk says."""
        def used():
            files = [path.lstat() for path in self.path("").rglob("*") if path.is_file() and not path.is_symlink()]
            return sum({info.st_ino: info.st_size for info in files}.values())
        before = used()
        result = self.nanovllm("rm", name)
        self.assertEqual(result.returncode, 0, result.stderr)
        said = re.fullmatch(rf"{name}: removed, (\d+) B are free again\n", result.stdout)
        self.assertTrue(said, result.stdout)
        self.assertEqual(int(said.group(1)), before - used())
        return before - used()

    def test_rm_frees_what_it_says_where_blobs_are_shared(self):
        same, old, new = noise(400), noise(110, 2), noise(120, 3)
        first = fill_cache(self.cache, "Own/A", {"same.gguf": same, "a-Q8_0.gguf": old}, "a" * 40, "v1")
        second = fill_cache(self.cache, "Own/A", {"same.gguf": same, "a-Q8_0.gguf": new, "again.gguf": same}, "b" * 40)
        self.assertEqual(self.freed("Own/A:again.gguf"), 0)  # two files of one revision
        self.assertEqual(self.freed(f"Own/A@{'a' * 40}"), 110 + 40)  # two revisions; and the note of what v1 was
        self.assertFalse(first.exists())
        other = fill_cache(self.cache, "Own/B", {"same.gguf": same, "b-Q8_0.gguf": old}, "c" * 40)
        blob, copy = (self.cache / f"models--Own--{model}/blobs" / file_hash("same.gguf", same) for model in "AB")
        copy.unlink()
        copy.hardlink_to(blob)  # two repositories, by a second name
        self.assertEqual(self.freed("Own/B"), 110 + 40)
        self.assertFalse(other.exists())
        other = fill_cache(self.cache, "Own/B", {"same.gguf": same, "b-Q8_0.gguf": old}, "c" * 40)
        copy.unlink()
        copy.symlink_to(os.path.relpath(blob, copy.parent))  # and by a link
        self.assertEqual(self.freed("Own/A"), 120 + 40)
        self.assertEqual((other / "same.gguf").read_bytes(), same)
        self.assertFalse(second.exists())
        self.assertEqual(self.freed("Own/B"), 110 + 40)
        self.assertEqual(self.freed("Own/A"), 400)
        self.assertEqual([path.name for path in self.cache.iterdir() if path.name != ".locks"], [])

    def test_rm_of_what_is_elsewhere_or_without_links(self):
        content = noise(300)
        fill_cache(self.path("disk"), "Own/A", {"a.gguf": content}, "a" * 40)
        self.cache.mkdir(parents=True)
        (self.cache / "models--Own--A").symlink_to(self.path("disk/models--Own--A"))
        self.assertEqual(self.freed("Own/A"), 300 + 40)
        pointer = fill_cache(self.cache, "Own/A", {"a.gguf": content}, "a" * 40) / "a.gguf"
        pointer.resolve().rename(pointer)
        self.assertEqual(self.freed("Own/A:a.gguf"), 300)

    def test_a_broken_model_hides_no_others(self):
        self.hub.add("Own/Demo", DEMO)
        self.hub.add("Own/Broken", {"config.json": b"{}", "model.safetensors.index.json": b"<html>"})
        self.pull()
        self.refused("model.safetensors.index.json: not valid JSON", name="Own/Broken")
        complete = {row["name"].split("@")[0]: row["complete"] for row in lines(self.nanovllm("list", "--json").stdout)}
        self.assertEqual(complete, {"Own/Broken": False, "Own/Demo": True})

    def test_what_is_being_pulled_is_not_removed(self):
        self.hub.add("Own/Big-GGUF", {"big.gguf": noise(PART)})
        self.hub.speed = 2e6
        process = self.start("pull", "Own/Big-GGUF")
        self.wait_until(lambda: any(self.blobs("Own/Big-GGUF").values()))
        self.refused("Own/Big-GGUF: is being pulled by another program; end that first", name="Own/Big-GGUF", command=("rm",))
        process.kill()
        process.communicate()
        self.assertEqual(self.nanovllm("rm", "Own/Big-GGUF").returncode, 0)


if __name__ == "__main__":
    unittest.main(testRunner=SideBySide)
