#!/usr/bin/env python3
"""Tells whether two trees compile CUDA kernels to the same code: for changes that only move them.

Usage: compare_ptx.py make BUILD FOLDER     compiles the kernels of a configured build to FOLDER/*.ptx
       compare_ptx.py compare OLD NEW       compares two such folders kernel by kernel; exit status 1 where one differs
Names count without the hashes of files that nvcc gives to unnamed namespaces. The numbers of labels and of local memory
count from the beginning of a kernel, those of virtual registers as they are.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys

# _GLOBAL__N__0123abcd_12_attention_cu_4567cdef_890 and the like, with its length before it.
FILE = re.compile(r"\d*_(?:GLOBAL__N|INTERNAL)__?[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}(?:_\d+)?")
NUMBERED = re.compile(r"(__local_depot|\$L__BB|\$L__tmp|\$str)\d+")
KERNEL = re.compile(r"\.entry\s+([^\s(]+)")
COMMENT = re.compile(r"//[^\n]*")


def make(build: pathlib.Path, folder: pathlib.Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        source = pathlib.Path(entry["file"])
        if source.suffix != ".cu" or "src" not in source.parts:
            continue
        words = [word for word in shlex.split(entry["command"]) if not word.endswith("ccache")]
        words = words[next(i for i, word in enumerate(words) if word.endswith("nvcc")):]
        target = folder / (source.stem + ".ptx")
        words[words.index("-o") + 1] = str(target)
        words[words.index("-c")] = "--ptx"
        # One architecture, and no machine code of it.
        words = [re.sub(r"^--generate-code=arch=(\w+),.*", r"--generate-code=arch=\1,code=\1", word) for word in words]
        subprocess.run(words, cwd=entry["directory"], check=True)
    return 0


def kernels(folder: pathlib.Path) -> dict:
    """Name of a kernel -> its text, neither of which tells where it stood."""
    found = {}
    for path in sorted(folder.glob("*.ptx")):
        text = FILE.sub("FILE", COMMENT.sub("", path.read_text(encoding="utf-8")))
        # What stands before the first kernel, variables above all, is compared as a whole.
        parts = re.split(r"(?=^(?:\.visible |\.weak )?\.entry )", text, flags=re.MULTILINE)
        found[path.stem + " (variables)"] = " ".join(sorted(parts[0].split("\n")))
        for part in parts[1:]:
            found[path.stem + " " + KERNEL.search(part).group(1)] = NUMBERED.sub(r"\1", part)
    return found


def compare(old: pathlib.Path, new: pathlib.Path) -> int:
    before, after = kernels(old), kernels(new)
    lines = [f"only in {old}: {name}" for name in sorted(before.keys() - after.keys())]
    lines += [f"only in {new}: {name}" for name in sorted(after.keys() - before.keys())]
    lines += [f"differs: {name}" for name in sorted(before.keys() & after.keys()) if before[name] != after[name]]
    same = sum(before[name] == after[name] for name in before.keys() & after.keys())
    print("\n".join([*lines, f"{same} of {len(before)} kernels and sets of variables are the same"]))
    return 1 if lines else 0


def main() -> int:
    if len(sys.argv) != 4 or sys.argv[1] not in {"make", "compare"}:
        print(__doc__, file=sys.stderr)
        return 2
    return (make if sys.argv[1] == "make" else compare)(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))


if __name__ == "__main__":
    sys.exit(main())
