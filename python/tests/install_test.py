"""What installing gives: the package and its command, from an archive; and what it says where it can't."""
import json
import os
import pathlib
import re
import subprocess
import sys

import nanovllm

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = pathlib.Path(sys.prefix) / "bin" / "nanovllm"


def run(*command, **kwargs):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, **kwargs)


def test_the_command_comes_along(model, run_binary):
    done = run(COMMAND, "--version")
    assert (done.returncode, done.stdout) == (0, f"nanovllm {nanovllm.__version__}\n"), done.stderr
    flags = ["--temperature", "0", "--max-tokens", "16"]
    done = run(COMMAND, "generate", model, "-q", "--json", "-p", "Once upon a time", *flags)
    (expected,) = run_binary([{"prompt": "Once upon a time"}], *flags)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


def test_the_libraries_are_those_of_the_package():
    folder = pathlib.Path(nanovllm.__file__).parent / "libraries"
    packed = {path.name for path in folder.iterdir()}
    for program in (COMMAND, nanovllm._engine.__file__):
        found = dict(re.findall(r"(\S+) => (\S+)", run("ldd", program).stdout))
        assert "not" not in found.values(), found
        assert packed & found.keys()
        for name in packed & found.keys():
            assert pathlib.Path(found[name]).resolve() == (folder / name).resolve()
    wanted = ("libfmt", "libpcre2-8", "libutf8proc", "libxxhash", "libprometheus-cpp-core", "libyaml-cpp", "libedit")
    assert all(any(name.startswith(f"{one}.so") for name in packed) for one in wanted), packed


def test_all_missing_packages_are_named_at_once(tmp_path):
    (tmp_path / "nothing").mkdir()
    only = [f"-DCMAKE_FIND_ROOT_PATH_MODE_{what}=ONLY" for what in ("INCLUDE", "PROGRAM")]
    environment = {key: value for key, value in os.environ.items() if key != "CXX"}
    done = run("cmake", "-S", ROOT, "-B", tmp_path / "build", "-DNANOVLLM_PYTHON_MODULE=ON",
               f"-DCMAKE_FIND_ROOT_PATH={tmp_path}/nothing", *only, env=environment)
    assert done.returncode != 0
    named = re.search(r"sudo apt-get install (.*)", done.stderr)[1].split()
    script = (ROOT / "scripts" / "install_packages.sh").read_text()
    needed = set(re.search(r"^build=\((.*?)\)", script, re.DOTALL | re.MULTILINE)[1].split())
    # What pip brings, what is of use only, and Boost, whose name has a version in some distributions.
    needed -= {"cmake", "ninja-build", "ccache"}
    boost = [name for name in named if name.startswith("libboost")]
    assert len(boost) == 1 and set(named) - set(boost) == needed | {"python3-dev"}
