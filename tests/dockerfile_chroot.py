#!/usr/bin/env python3
"""Makes what a Dockerfile makes, without Docker, and serves from it: every stage is a chroot of debootstrap's, COPY copies and
RUN runs there. Then the image's program runs as its user on a read-only root, and its health check is asked.

To be run by hand, as root, with debootstrap installed and Debian's packages in reach:
  tests/dockerfile_chroot.py deploy/docker/cpu.Dockerfile
  tests/dockerfile_chroot.py deploy/docker/cuda.Dockerfile --build-arg CUDA_ARCHITECTURES=90a-real
"""
import argparse
import ctypes
import fcntl
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Of an image, and nothing of it is run here.
IGNORED = {"EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
# As the images called debian have them.
SOURCES = """Types: deb
URIs: http://deb.debian.org/debian
Suites: {suite} {suite}-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def instructions(text):
    """(name, rest) of each instruction, continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.M))
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, rest = line.partition(" ")
        yield name.upper(), rest.strip()


class Stage:
    """What one FROM began: a root folder, and what later instructions go by."""

    def __init__(self, name, root):
        self.name, self.root = name, root
        self.environment = {"PATH": PATH}
        self.arguments = {}  # of the build, which RUN sees and the image does not
        self.folder, self.user = "/", "0:0"
        self.image = {}  # the ignored instructions

    def path(self, text):
        """Below the root, relative ones to WORKDIR."""
        return self.root / os.path.normpath(os.path.join(self.folder, text)).lstrip("/")

    def command(self, words, read_only=False, mounts=()):
        """What runs these words in the stage, as its user: the command of a process in namespaces of its own."""
        script = ["set -e", "mount --make-rprivate /", 'mount --bind "$1" "$1"']
        if read_only:
            script.append('mount -o remount,bind,ro "$1"')
        for source, target, options in mounts:
            script.append(f'mount --bind {shlex.quote(str(source))} "$1"{target}')
            script.append(f'mount -o remount,bind,{options} "$1"{target}')
        script.append('mount -t proc proc "$1/proc"; mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"')
        uid, _, gid = self.user.partition(":")
        user = [] if uid == "0" else ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs",
                                      "--bounding-set=-all", "--inh-caps=-all"]
        environment = [f"{key}={value}" for key, value in self.environment.items()]
        script.append('root=$1; shift; exec chroot "$root" ' + shlex.join([*user, "env", "-i", *environment]) + ' "$@"')
        # The first process of its namespace, as in a container.
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", "\n".join(script), "sh", str(self.root), *words]

    def run(self, words):
        for name in ("hosts", "resolv.conf"):
            shutil.copy(f"/etc/{name}", self.root / "etc" / name)
        subprocess.run(self.command(words), check=True, stdin=subprocess.DEVNULL)


class Build:
    def __init__(self, dockerfile, folder, build_args):
        self.dockerfile, self.folder, self.build_args = pathlib.Path(dockerfile), pathlib.Path(folder), build_args
        self.stages, self.arguments = {}, {}

    def base(self, image):
        """A folder with what an image called debian has, made once a suite."""
        found = re.fullmatch(r"debian:(\w+)-slim", image)
        if not found:
            sys.exit(f"{self.dockerfile}: FROM {image}: only debian:SUITE-slim is known here")
        suite = found.group(1)
        root = self.folder / f"debian-{suite}"
        if not (root / "done").exists():
            subprocess.run(["debootstrap", "--variant=minbase", suite, str(root), "http://deb.debian.org/debian"], check=True,
                           stdout=subprocess.DEVNULL)
            (root / "etc/apt/sources.list").unlink(missing_ok=True)
            (root / "etc/apt/sources.list.d/debian.sources").write_text(SOURCES.format(suite=suite))
            (root / "done").touch()
        return root

    def begin(self, rest):
        image, _, name = re.fullmatch(r"(\S+)(\s+[Aa][Ss]\s+(\S+))?", self.filled(rest, self.arguments)).groups()
        name = name or f"stage{len(self.stages)}"
        before = self.stages.get(image)
        stage = Stage(name, self.folder / name)
        subprocess.run(["cp", "-a", "--reflink=auto", str(before.root if before else self.base(image)), str(stage.root)], check=True)
        if before:
            stage.environment, stage.folder, stage.user = dict(before.environment), before.folder, before.user
        self.stages[name] = stage
        return stage

    def filled(self, text, values):
        return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda found: values.get(found.group(1) or found.group(2), ""), text)

    def argument(self, rest, known):
        name, _, value = rest.partition("=")
        value = " ".join(shlex.split(value))
        return name, self.build_args.get(name, known.get(name, value))

    def copy(self, stage, words):
        source = SOURCE
        if words[0].startswith("--from="):
            source = self.stages[words.pop(0)[len("--from="):]].root
        *names, target = words
        destination = stage.path(target)
        for name in names:
            origin = source / name.lstrip("/")
            to = destination / origin.name if target.endswith("/") and origin.is_file() else destination
            to.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", "-T", str(origin), str(to)], check=True)
            subprocess.run(["chown", "-R", "0:0", str(to)], check=True)

    def run(self):
        """The last stage."""
        stage = None
        for name, rest in instructions(self.dockerfile.read_text()):
            print(f"== {stage.name if stage else '-'}: {name} {rest}", flush=True)
            if name == "FROM":
                stage = self.begin(rest)
            elif name == "ARG" and stage is None:
                self.arguments.update([self.argument(rest, {})])
            elif name == "ARG":
                stage.arguments.update([self.argument(rest, self.arguments)])
            elif name == "ENV":
                stage.environment.update(word.split("=", 1) for word in shlex.split(rest))
            elif name == "WORKDIR":
                stage.folder = os.path.join(stage.folder, rest)
                stage.path(".").mkdir(parents=True, exist_ok=True)
            elif name == "USER":
                stage.user = rest
            elif name == "COPY":
                self.copy(stage, shlex.split(rest))
            elif name == "RUN":
                arguments = "".join(f"{key}={shlex.quote(value)}; " for key, value in stage.arguments.items())
                stage.run(["/bin/sh", "-c", f"cd {shlex.quote(stage.folder)}; {arguments}{rest}"])
            elif name in IGNORED:
                stage.image[name] = rest
            else:
                sys.exit(f"{self.dockerfile}: {name}: an instruction that is not known here")
        return stage


def check(condition, what):
    print(f"{'ok' if condition else 'FAILED'}: {what}", flush=True)
    if not condition:
        sys.exit(1)


def own_network():
    """Port 8000 is free in it."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:  # CLONE_NEWNET; Python has it from 3.12 on
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket() as any_socket:
        up_and_running = 0x41
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", up_and_running))  # SIOCSIFFLAGS


def try_image(stage, folder):
    """Serves the demo model from the image, and asks its health check."""
    check(stage.user not in ("", "0", "0:0", "root"), f"the image's user is not root: {stage.user}")
    entry = json.loads(stage.image["ENTRYPOINT"])
    version = subprocess.run(stage.command([*entry, "--version"], read_only=True), capture_output=True, text=True)
    check(version.returncode == 0 and version.stdout.startswith("nanovllm "), f"it starts: {version.stdout or version.stderr}")
    told = subprocess.run(stage.command([*entry, *json.loads(stage.image["CMD"])]), capture_output=True, text=True)
    check("serve" in told.stdout and told.returncode == 0, "without a command it explains itself")

    own_network()
    (stage.root / "demo").mkdir(exist_ok=True)
    models = pathlib.Path(folder) / "models"
    models.mkdir(exist_ok=True)
    os.chown(models, *map(int, stage.user.split(":")))
    mounts = [(SOURCE / "models/demo", "/demo", "ro"), (models, "/models", "rw")]
    server = subprocess.Popen(stage.command([*entry, "serve", "/demo", "--host", "0.0.0.0"], read_only=True, mounts=mounts))
    health = stage.image["HEALTHCHECK"].partition("CMD ")[2]

    def is_healthy():
        return subprocess.run(stage.command(["/bin/sh", "-c", health], read_only=True), stderr=subprocess.DEVNULL).returncode == 0

    check(not is_healthy(), f"the health check fails before it is ready: {health}")
    deadline = time.monotonic() + 120
    while not is_healthy() and server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    check(is_healthy(), "the health check holds once it is")
    ask = ("curl -fsS http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' "
           """-d '{"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}'""")
    answer = subprocess.run(stage.command(["/bin/sh", "-c", ask], read_only=True), capture_output=True, text=True)
    check(answer.returncode == 0 and json.loads(answer.stdout)["usage"]["completion_tokens"] == 16,
          f"it answers: {answer.stdout or answer.stderr}")
    children = pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    check(server.wait(30) == 0, "SIGTERM ends it with status 0")
    check(not any(models.iterdir()), "it wrote nothing")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dockerfile")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--folder", help="where the stages are made (by default a new one, which is removed)")
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        sys.exit("this needs root, for chroot and mount, and debootstrap (apt-get install debootstrap)")
    folder = options.folder or tempfile.mkdtemp(prefix="nanovllm-chroot.", dir="/var/tmp")
    try:
        start = time.monotonic()
        stage = Build(options.dockerfile, folder, dict(arg.split("=", 1) for arg in options.build_arg)).run()
        size = subprocess.run(["du", "-sm", str(stage.root)], capture_output=True, text=True, check=True).stdout.split()[0]
        print(f"== built in {time.monotonic() - start:.0f} s; the image has {size} MiB", flush=True)
        try_image(stage, folder)
    finally:
        if not options.folder:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
