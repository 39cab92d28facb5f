"""Models by name through the real binary: names and the cache, tokens and certificates, and what is shown, on a hub of our own."""
import hashlib
import json
import os
import pathlib
import pwd
import re
import signal
import subprocess
import unittest

from cli_testing import MODEL, SMALL, SideBySide, lines, run, run_watched
from hub_cli_testing import DEMO, NEEDED, PART, HubTest, noise
from hub_testing import Hub, failing, file_hash, fill_cache, git_sha1


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

    def test_a_draft_model_may_be_a_name_as_well(self):
        self.hub.add("Own/Demo", DEMO)
        drafts = ("--speculative-config", json.dumps({"method": "draft_model", "model": "Own/Demo", "num_speculative_tokens": 2}))
        result = self.nanovllm("info", MODEL, "--json", *drafts)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("/models--Own--Demo/snapshots/", json.loads(result.stdout)["kv_groups"][-1])

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
        self.interrupted_pull("Own/Big-GGUF", signal.SIGINT)
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
