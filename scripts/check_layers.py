#!/usr/bin/env python3
"""Checks that includes go only downwards: a layer includes itself and the layers below it (docs/architecture.md); and
that src/io names no family of models, each of which stands in its file in src/models.

Usage: check_layers.py [ROOT]. Exit status 1 and one line for each offence.
"""
import pathlib
import re
import sys

# Layer -> layers it may include, itself always allowed; lowest first.
ALLOWED = {
    "base": set(),
    "io": {"base"},
    "hub": {"io", "base"},
    "text": {"io", "base"},
    "grammar": {"text", "io", "base"},
    "ops": {"base"},
    "backend": {"ops", "base"},
    "models": {"ops", "io", "base"},
    "runner": {"models", "backend", "ops", "io", "base"},
    "engine": {"runner", "grammar", "text", "io", "base"},
    "api": {"engine", "text", "io", "base"},
    "server": {"api", "engine", "grammar", "text", "io", "base"},
    "cli": {"server", "api", "engine", "text", "hub", "io", "base"},
}
# Public header -> the lowest layer that may include it: the lowest one that needs its values, or whose class it declares.
PUBLIC = {
    "error.h": "base",
    "hub.h": "hub",
    "sampling_params.h": "io",
    "config.h": "runner",
    "chat.h": "text",
    "tokenizer.h": "text",
    "engine_info.h": "io",
    "outputs.h": "engine",
    "llm_engine.h": "engine",
    "engine_loop.h": "engine",
    "prepare.h": "engine",
    "llm.h": "api",
}
# Folder -> its rooms -> those of them that a room may include besides itself; none includes one that stands after it.
# What lies in no room of the server ties them together and may include all of them.
ROOMS = {
    "server": {
        "http": set(),
        "page": set(),
        "transcript": set(),
        "fleet": set(),
        "openai": {"http", "transcript", "fleet"},
        "agents": {"http", "transcript", "fleet", "openai"},
    },
    # A floor of device code, the rooms of the kernels, and on top of them the backend.
    "backend/cuda": {
        "device": set(),
        "attention": {"device"},
        "linear": {"device"},
        "recurrent": {"device"},
        "experts": {"device"},
        "sampling": {"device"},
        "peers": {"device"},
        "layer": {"device", "linear", "peers"},
        "backend": {"device", "attention", "linear", "recurrent", "experts", "sampling", "peers", "layer"},
    },
}
FLOOR = {"server/log.h"}  # that all rooms stand on
HAS_HALL = {"server"}  # a folder some of whose files lie in no room
# The one room that others of its layer may include, and that may include what else is in the layer.
DOORS = {"backend/cuda": "backend"}
# What only tests may include, besides what its name tells of.
OF_TESTS = {"backend_cases", "fleet_stage"}
# What the engine may know of what is below the runner: the plain data of a step and of a model, no tensors and no devices.
EXTRA = {("engine", "ops/sampling.h"), ("engine", "models/load_config.h")}
DEVICE = re.compile(r'#\s*include\s*[<"](cuda|cublas|nccl|immintrin)')
# The architectures of the families' rows, and what else is text or comment in a source.
ARCHITECTURE = re.compile(r'"([A-Z]\w*?)[\d_]*(?:Moe)?For[A-Z]\w+"')
COMMENT_OR_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/|.', re.DOTALL)
# A kind of rotary embedding, a key of many models, and an example of a model's name.
NOT_FAMILIES = re.compile(r'"llama3"|llama3_\w+|"is_llama_config"|Qwen/Qwen3-0\.6B')
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def stands_on(layer: str) -> set:
    """The layers it may include, directly or not, and itself."""
    return {layer}.union(*(stands_on(below) for below in ALLOWED[layer]))


def is_test(path: pathlib.Path) -> bool:
    return path.stem.endswith(("_test", "testing", "_test_support")) or path.stem in OF_TESTS


def family_names(root: pathlib.Path):
    """One expression for the names of all families: "GptOssForCausalLM" gives gpt_oss, gpt-oss and GptOss."""
    names = set()
    for path in (root / "src/models").glob("*.cc"):
        if not is_test(path):
            names.update(ARCHITECTURE.findall(path.read_text(encoding="utf-8")))
    words = ("[-_]?".join(re.findall(r"[A-Z]+[a-z]*", name)) for name in sorted(names))
    return re.compile("(?<![a-z])(?:" + "|".join(words) + ")", re.IGNORECASE) if names else None


def families_in(text: str, names) -> list:
    """Those that a source names outside of comments."""
    code = "".join(part for part in COMMENT_OR_CODE.findall(text) if not part.startswith(("//", "/*")))
    return sorted({name.lower() for name in names.findall(NOT_FAMILIES.sub("", code))})


def room_of(name: str) -> tuple:
    """The folder with rooms and the room in which "folder/room/..." lies; "" where it lies in none."""
    for folder, rooms in ROOMS.items():
        if name.startswith(folder + "/"):
            room = name[len(folder) + 1:].partition("/")[0]
            return folder, room if room in rooms else ""
    return "", ""


def refusal(name: str, other: str) -> str:
    """Why a file of src, of this name, must not include another one by what their rooms are, or ""; tests may all."""
    (folder, room), (other_folder, other_room) = room_of(name), room_of(other)
    if is_test(pathlib.PurePath(name)) or other in FLOOR:
        return ""
    if is_test(pathlib.PurePath(other)):
        return "what is no test must not include a test's"
    if folder and folder == other_folder:
        return "this room must not include" if room and other_room not in {room} | ROOMS[folder][room] else ""
    if DOORS.get(folder, room) != room and other.startswith(folder.partition("/")[0] + "/"):
        return f"this room must not include what lies outside of {folder}:"
    if DOORS.get(other_folder, other_room) != other_room:
        return f"of {other_folder} others may include the room {DOORS[other_folder]} only, not"
    return ""


def offences(root: pathlib.Path):
    families = family_names(root)
    for path in sorted([*(root / "include").rglob("*"), *(root / "src").rglob("*")]):
        if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
            continue
        is_public = path.is_relative_to(root / "include")
        layer = PUBLIC.get(path.name) if is_public else path.relative_to(root / "src").parts[0]
        if layer not in ALLOWED:
            yield f"{path}: of no layer; add it to {__file__}"
            continue
        text = path.read_text(encoding="utf-8")
        folder, room = ("", "") if is_public else room_of(path.relative_to(root / "src").as_posix())
        if folder and not room and folder not in HAS_HALL:
            yield f"{path}: in no room of {folder}; move it into one"
        if layer != "backend" and DEVICE.search(text):
            yield f"{path}: device headers belong in src/backend"
        allowed = {layer} | ALLOWED[layer]
        # A test may stand on everything its layer stands on, directly or not.
        if is_test(path):
            for below in ALLOWED[layer]:
                allowed |= ALLOWED[below]
            if layer in {"models", "runner", "engine", "api"}:
                allowed |= {"ops", "backend", "models", "runner"}
        elif layer == "io" and families is not None:
            for name in families_in(text, families):
                yield f"{path}: names the family {name}, of which only its file in src/models knows"
        for name in INCLUDE.findall(text):
            target, _, rest = name.partition("/")
            if target == "nanovllm":
                fits = PUBLIC.get(rest) in stands_on(layer)
            else:  # a public header is installed without those of src
                fits = not is_public and (not rest or target in allowed or (layer, name) in EXTRA)
            why = "" if is_public else refusal(path.relative_to(root / "src").as_posix(), name)
            if why:
                yield f'{path}: {why} "{name}"'
            if not fits:
                yield f'{path}: layer {layer} must not include "{name}"'


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    found = list(offences(root))
    print("\n".join(found) if found else "layers: every include goes downwards, and families stand in their files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
