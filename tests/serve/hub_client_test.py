"""huggingface_hub and we share a cache: it reads what we pulled, and we what it pulled, from a hub on this machine."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from hub_testing import Hub  # noqa: E402

BINARY, MODEL = os.environ["NANOVLLM"], os.environ["NANOVLLM_MODEL"]
FILES = {path.name: path.read_bytes() for path in pathlib.Path(MODEL).iterdir()}
# Its settings are read when it is imported, so that it runs in a process of its own.
PREAMBLE = "import os, sys, json, huggingface_hub as hub\n"


class Shared(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.hub = Hub()
        self.addCleanup(self.hub.close)
        self.repository = self.hub.add("Own/Demo", FILES)
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
        self.environment |= {"HF_HOME": folder.name, "HF_ENDPOINT": self.hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                             "HF_HUB_DISABLE_TELEMETRY": "1"}

    def outcome(self, command, env):
        result = subprocess.run(command, env={**self.environment, **env}, capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.strip()

    def nanovllm(self, *args, **env):
        return self.outcome([BINARY, *args], env)

    def python(self, code, **env):
        return self.outcome([sys.executable, "-c", PREAMBLE + code], env)

    def test_it_reads_what_we_pulled(self):
        path = self.nanovllm("pull", "Own/Demo")
        self.hub.forget()
        ours = "allow_patterns=['*.json', '*.safetensors']"
        for offline in ("1", "0"):
            self.assertEqual(self.python(f"print(hub.snapshot_download('Own/Demo', {ours}))", HF_HUB_OFFLINE=offline), path)
            self.assertEqual(self.python("print(hub.hf_hub_download('Own/Demo', 'model.safetensors'))", HF_HUB_OFFLINE=offline), path + "/model.safetensors")
        self.assertEqual([request for request in self.hub.requests if request.sent > 20000], [])  # nothing came again
        repo, = self.python("info = hub.scan_cache_dir(); print(*[(r.repo_id, r.size_on_disk, sorted(r.refs), len(info.warnings)) for r in info.repos], sep='\\n')"
                            ).splitlines()
        size = sum(len(content) for name, content in FILES.items() if name.endswith((".json", ".safetensors")))
        self.assertEqual(repo, f"('Own/Demo', {size}, ['main'], 0)")

    def test_it_adds_to_what_we_pulled_and_deletes_it(self):
        path = pathlib.Path(self.nanovllm("pull", "Own/Demo"))
        self.python("hub.snapshot_download('Own/Demo')")
        self.assertEqual({file.name for file in path.iterdir()}, set(FILES))
        self.python(f"hub.scan_cache_dir().delete_revisions('{path.name}').execute()")
        self.assertEqual(self.nanovllm("list"), "")

    def test_we_read_what_it_pulled(self):
        path = self.python("print(hub.snapshot_download('Own/Demo'))")
        self.hub.close()
        for offline in ("1", "0"):
            text = self.nanovllm("generate", "Own/Demo", "-q", "-p", "Once upon a time", "--max-tokens", "8", "--temperature", "0", HF_HUB_OFFLINE=offline)
            self.assertTrue(text.startswith("Once upon a time"), text)
        self.assertIn(f'"path":"{path}"', self.nanovllm("list", "--json"))

    def test_what_it_pulled_needs_no_hub(self):
        path = self.python("print(hub.snapshot_download('Own/Demo', allow_patterns=['*.json', '*.safetensors']))")
        first = self.repository.revisions["main"]
        self.repository.commit({**FILES, "config.json": FILES["config.json"] + b"\n"})
        self.hub.forget()
        folders = [folder for folder, _, _ in os.walk(self.home)]
        for folder in folders:
            os.chmod(folder, 0o555)
        try:
            for name in ("Own/Demo", f"Own/Demo@{first}"):
                self.nanovllm("tokenize", name, "x")
        finally:
            for folder in folders:
                os.chmod(folder, 0o755)
        self.assertEqual(self.hub.requests, [])
        self.repository.private = True
        self.assertEqual(self.nanovllm("pull", "Own/Demo"), path)  # what is there, as the hub refuses
        self.repository.private = False
        self.hub.forget()
        self.assertNotEqual(self.nanovllm("pull", "Own/Demo"), path)
        self.assertEqual([request.path.rsplit("/", 1)[1] for request in self.hub.of("hub", "resolve")], ["config.json"])
        self.assertEqual(self.hub.of("files"), [])

    def test_we_fetch_only_what_it_left_out(self):
        self.python("hub.hf_hub_download('Own/Demo', 'model.safetensors')")
        self.hub.forget()
        self.nanovllm("tokenize", "Own/Demo", "x")
        self.assertEqual(self.hub.of("files"), [])

    def test_both_at_once_on_one_file(self):
        self.hub.speed = 6e6
        ours = subprocess.Popen([BINARY, "pull", "Own/Demo"], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        theirs = self.python("print(hub.snapshot_download('Own/Demo'))")
        out, err = ours.communicate(timeout=120)
        self.assertEqual((ours.returncode, out.strip()), (0, theirs), err)
        self.assertEqual((pathlib.Path(theirs) / "model.safetensors").read_bytes(), FILES["model.safetensors"])
        self.assertEqual(sum(request.sent for request in self.hub.of("files")), len(FILES["model.safetensors"]))

    def test_the_token_of_its_login(self):
        self.hub.token, self.repository.private = "hf_secret", True
        self.python("from huggingface_hub import constants, _login\nopen(constants.HF_TOKEN_PATH, 'w').write('hf_secret')\nprint(hub.get_token())")
        self.nanovllm("pull", "Own/Demo")
        self.assertEqual({request.token for request in self.hub.of("hub")}, {"Bearer hf_secret"})

    def test_a_branch_with_a_slash_in_its_name(self):
        self.repository.commit({**FILES, "config.json": FILES["config.json"] + b"\n"}, "feature/x")
        path = self.nanovllm("pull", "Own/Demo@feature/x")
        self.assertEqual(self.python("print(hub.hf_hub_download('Own/Demo', 'config.json', revision='feature/x'))", HF_HUB_OFFLINE="1"), path + "/config.json")


if __name__ == "__main__":
    if importlib.util.find_spec("huggingface_hub") is None:
        print("SKIPPED: no huggingface_hub package: its cache and ours were not tried against each other", file=sys.stderr)
        sys.exit(77)
    unittest.main()
