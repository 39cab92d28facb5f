"""A pod of deploy/kubernetes, played on this machine with the real binary: it pulls as the init container does and serves with the
container's own arguments, as its user, on a read-only root, as the first process of its namespace, until SIGTERM."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import yaml  # noqa: E402
from hub_testing import Hub  # noqa: E402
from manifest_testing import KUBERNETES, PICKER_CACHE, PICKER_CACHE_LABELS, PICKER_GAUGES, seconds_of  # noqa: E402
from serve_testing import BINARY, MODEL, Server, run_tests, text_of  # noqa: E402

NAME = "tiny/stories"
POD = yaml.safe_load((KUBERNETES / "base/deployment.yaml").read_text())["spec"]["template"]["spec"]
# Everything that is mounted becomes read-only, but /proc, which is that of the new namespace.
LOCKED = r"""
set -e
mount --make-rprivate /
models=$1; writable=$2; user=$3; shift 3
mount --bind "$models" "$models"
awk '{print $5}' /proc/self/mountinfo | while read -r point; do
  case $(printf %b "$point") in "$models") mount -o remount,bind,"$writable" "$models" ;; /proc*) ;;
    *) mount -o remount,bind,ro "$(printf %b "$point")" 2>/dev/null || true ;; esac
done
mount -t proc proc /proc
exec setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""


def can_lock():
    tools = all(map(shutil.which, ("unshare", "setpriv", "mount")))
    return tools and os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode == 0


def lock(models, writable):
    """What runs a command as the pod's containers run."""
    user = str(POD["securityContext"]["runAsUser"])
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", LOCKED, "sh", str(models), "rw" if writable else "ro", user]


def environment(container, models):
    values = {each["name"]: each["value"] for each in container["env"] if "value" in each}  # the secrets are optional
    return {"PATH": os.environ["PATH"], "HF_HOME": str(models), **values}


def expanded(args, **replaced):
    """As the kubelet does it, and with flags of ours where ports and addresses are not free."""
    args = [arg.replace("$(MODEL)", NAME) for arg in args]
    return [f"{arg.split('=')[0]}={replaced[arg.split('=')[0]]}" if arg.split("=")[0] in replaced else arg for arg in args]


class Pod(Server):
    """Its process is unshare's; `first` is the server's, which that waits for."""

    def __init__(self, models, **flags):
        container = POD["containers"][0]
        self.args = expanded(container["args"], **{"--host": "127.0.0.1", "--port": 0, **flags})
        self.outside = {key: os.environ.pop(key) for key in [*os.environ] if key.startswith(("HF_", "NANOVLLM"))}
        try:
            super().__init__(command=lock(models, writable=False) + [BINARY, *self.args], wait=False, environment=environment(container, models))
        finally:
            os.environ.update(self.outside)

    def first(self):
        return int(pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii").split()[0])

    def terminate(self):
        os.kill(self.first(), signal.SIGTERM)


@unittest.skipUnless(can_lock(), "namespaces with a read-only root need root")
class Replica(unittest.TestCase):
    def setUp(self):
        self.hub = Hub()
        self.addCleanup(self.hub.close)
        files = {path.name: path.read_bytes() for path in pathlib.Path(MODEL).iterdir() if path.suffix in (".json", ".safetensors")}
        self.hub.add(NAME, files)
        self.models = pathlib.Path(tempfile.mkdtemp(prefix="nanovllm-models."))
        self.addCleanup(shutil.rmtree, self.models)
        user = POD["securityContext"]["runAsUser"]
        os.chown(self.models, user, user)  # as fsGroup sees to it

    def pull(self):
        container = POD["initContainers"][0]
        done = subprocess.run(lock(self.models, writable=True) + [BINARY, *expanded(container["args"])], capture_output=True, text=True,
                              env={**environment(container, self.models), "HF_ENDPOINT": self.hub.url}, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def serve(self, **flags):
        pod = Pod(self.models, **flags)
        self.addCleanup(pod.close)
        pod.port = int(pod.wait_for(r"listening on http://[^\s]*:(\d+)").group(1))
        return pod

    def test_the_root_is_read_only_here(self):
        for path, writable, status in (("/tmp", False, 1), ("/dev/shm", False, 1), (self.models, False, 1), (self.models, True, 0)):
            command = [*lock(self.models, writable), "sh", "-c", 'echo 1 >"$0/file" && rm "$0/file"', str(path)]
            told = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(told.returncode == 0, status == 0, (path, writable, told.stderr))
            if status:
                self.assertIn("Read-only file system", told.stderr)

    def test_a_pod_pulls_once_serves_and_ends_its_streams(self):
        self.pull()
        self.assertGreater(len(self.hub.of("files")), 0)
        self.hub.forget()
        self.pull()  # a pod more, with the same volume
        self.assertEqual(self.hub.of("files"), [])

        self.hub.close()  # a server asks no hub
        pod = self.serve()
        self.assertEqual(pod.get("/ping").status, 200)  # before it is ready, too
        pod.wait_ready()
        with open(f"/proc/{pod.first()}/status", encoding="ascii") as status:
            told = status.read()
        self.assertRegex(told, rf"(?m)^Uid:\s+{POD['securityContext']['runAsUser']}\s")
        self.assertRegex(told, r"(?m)^NSpid:\s+\d+\s+1$")
        self.assertRegex(told, r"(?m)^CapEff:\s+0+$")
        self.assertEqual(pod.get("/v1/models").json["data"][0]["id"], NAME)

        events, begun = [], threading.Event()

        def read():
            for event in pod.stream("/v1/completions", {"model": NAME, "prompt": "Once upon a time", "max_tokens": 1500, "temperature": 0,
                                                        "ignore_eos": True}):
                events.append(event)
                begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        self.assertTrue(begun.wait(60))
        start = time.monotonic()
        pod.terminate()
        deadline = time.monotonic() + 10
        while pod.process.poll() is None and pod.get("/health").status != 503:  # out of the balancers
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(pod.get("/ping").status, 200)  # and not killed for it
        reader.join(60)
        self.assertEqual(pod.process.wait(60), 0)
        self.assertLess(time.monotonic() - start, POD["terminationGracePeriodSeconds"])
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(events[-2]["choices"][0]["finish_reason"], "length")
        self.assertGreater(len(text_of(events)), 1000)

    def test_what_does_not_end_in_time_is_ended_within_the_grace_period(self):
        self.pull()
        drain = 1
        pod = self.serve(**{"--shutdown-timeout": drain})
        pod.wait_ready()
        connections = [pod.connect() for _ in range(8)]
        for connection in connections:
            connection.request("POST", "/v1/completions", '{"prompt": "Once", "max_tokens": 1900, "n": 16, "ignore_eos": true, "stream": true}',
                               {"Content-Type": "application/json"})
            connection.getresponse()
        start = time.monotonic()
        pod.terminate()
        self.assertEqual(pod.process.wait(60), 0)
        margin = POD["terminationGracePeriodSeconds"] - POD["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        margin -= seconds_of("--shutdown-timeout", POD["containers"][0]["args"])
        self.assertLess(time.monotonic() - start, drain + margin)
        for connection in connections:
            connection.close()

    def test_the_picker_and_the_autoscaler_find_their_metrics(self):
        self.pull()
        pod = self.serve()
        pod.wait_ready()
        text = pod.get("/metrics").text

        def series(name):
            return re.findall(rf"(?m)^{name}\{{(.*)\}} (\S+)$", text)

        for name in [*PICKER_GAUGES, PICKER_CACHE]:
            self.assertEqual(len(series(name)), 1, name)  # of several it would take the first alone
        for name in PICKER_GAUGES:
            self.assertEqual(float(series(name)[0][1]), 0)
        labels = dict(re.findall(r'(\w+)="([^"]*)"', series(PICKER_CACHE)[0][0]))
        block_size, num_blocks = (int(labels[name]) for name in PICKER_CACHE_LABELS)
        self.assertEqual(block_size, 256)
        self.assertEqual(int(labels["kv_cache_size_tokens"]), block_size * num_blocks)
        pod.terminate()
        self.assertEqual(pod.process.wait(60), 0)


if __name__ == "__main__":
    run_tests()
