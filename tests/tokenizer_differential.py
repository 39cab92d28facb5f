#!/usr/bin/env python3
"""Our tokenizer against Hugging Face's `tokenizers` package on seeded random text.

usage: tokenizer_differential.py [--seed N] [--rounds N] [--every N] [--only NAME]

Compared are the small tokenizers of tokenizer_cases.py, which between them use every supported
option, that of the demo model ($NANOVLLM_MODEL), those of tests/data/tokenizers, and those of
$NANOVLLM_SHARED/data/tokenizers.tar.xz where that is there. $NANOVLLM_BIN is the folder of the
program built from tests/tokenizer_driver.cc. The package is the one of this Python, else what
scripts/install_tokenizers.sh put into $NANOVLLM_PYTHON_PACKAGES; exits with 77 (skipped) where
there is neither.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tarfile
import tempfile

import tokenizer_cases as cases

PACKAGES = os.environ.get("NANOVLLM_PYTHON_PACKAGES", "build/python")
sys.path.append(PACKAGES)
try:
    import tokenizers
except ImportError:
    print("SKIPPED: tokenizer_differential needs the Python package `tokenizers` and compared nothing; run "
          f"scripts/install_tokenizers.sh {PACKAGES} where there is a network")
    sys.exit(77)


class Driver:
    def __init__(self, program, model_dir):
        self.process = subprocess.Popen(
            [program, model_dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, what, payload):
        self.process.stdin.write(what.encode() + struct.pack("<I", len(payload)) + payload)
        self.process.stdin.flush()
        length = self.length()
        if length == 0xFFFFFFFF:
            raise RuntimeError(self.read(self.length()).decode())
        return self.read(length)

    def length(self):
        return struct.unpack("<I", self.read(4))[0]

    def read(self, size):
        data = self.process.stdout.read(size)
        if len(data) != size:
            raise RuntimeError("the driver ended")
        return data

    def encode(self, text, special):
        data = self.ask("E" if special else "e", text.encode())
        return list(struct.unpack(f"<{len(data) // 4}i", data))

    def decode(self, ids, skip, stream):
        letter = {(False, False): "D", (True, False): "d", (False, True): "S", (True, True): "s"}
        return self.ask(letter[skip, stream], struct.pack(f"<{len(ids)}i", *ids)).decode()

    def close(self):
        self.process.stdin.close()
        return self.process.wait()


# --- comparing -----------------------------------------------------------------------------------

class Difference(Exception):
    pass


def check(what, ours, theirs, given):
    if ours == theirs:
        return
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b),
              min(len(ours), len(theirs)))
    raise Difference(f"{what} of {given!r}\n  differ from {at} on: ours {ours[at:at + 20]!r}, "
                     f"theirs {theirs[at:at + 20]!r}")


def ask_peer(function, *arguments, **options):
    """The package's answer, or None where it crashes, as it does on some empty pieces."""
    try:
        return function(*arguments, **options)
    except BaseException as error:  # a Rust panic is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return None


def compare(program, model_dir, rng, rounds):
    path = os.path.join(model_dir, "tokenizer.json")
    peer = tokenizers.Tokenizer.from_file(path)
    with open(path, encoding="utf-8") as file:
        added = json.load(file)["added_tokens"]
    extra = [token["content"] for token in added][:40]
    # How tokens decode whose normalized form differs depends on the release of the package.
    odd = {token["id"] for token in added
           if token["normalized"] and peer.id_to_token(token["id"]) != token["content"]}
    known_ids = sorted(peer.get_vocab(with_added_tokens=True).values())
    driver = Driver(program, model_dir)
    for i in range(rounds):
        # The first is longer than what is cut into words at once.
        text = "".join(cases.random_text(rng, extra) for _ in range(400 if i == 0 else 1))
        for special in (False, True):
            encoding = ask_peer(peer.encode, text, add_special_tokens=special)
            ids = driver.encode(text, special)
            if encoding is not None:
                check(f"encode (special={special})", ids, encoding.ids, text)
        random_ids = [known_ids[i] if i < len(known_ids) else i for i in cases.random_ids(rng, len(known_ids))]
        for some in (ids, random_ids):
            some = [i for i in some if i not in odd]
            for skip in (False, True):
                decoded = ask_peer(peer.decode, some, skip_special_tokens=skip)
                ours = driver.decode(some, skip, False)
                if decoded is not None:
                    check(f"decode (skip={skip})", ours, decoded, some)
                check(f"stream (skip={skip})", driver.decode(some, skip, True), ours, some)
    if driver.close() != 0:
        raise Difference("the driver failed")


# --- every character -----------------------------------------------------------------------------

# Planes in which no version of Unicode has a character, and those of private use, all alike. They are three quarters of all
# code points; one in so many of them shows any range of a table that is wrong there, and its ends are compared too.
ALIKE = range(0x40000, 0xE0000), range(0xF0000, 0x110000)
STEP_AMONG_ALIKE = 101


def code_points(every):
    apart = set(range(0, 0x110000, every)) - set(range(0xD800, 0xE000))
    for planes in ALIKE:
        kept = {*planes[::STEP_AMONG_ALIKE * every], *planes[::0x10000], *planes[0xFFFF::0x10000]}
        apart = apart - set(planes) | kept
    return sorted(apart)


def compare_characters(program, name, model_dir, every):
    peer = tokenizers.Tokenizer.from_file(os.path.join(model_dir, "tokenizer.json"))
    driver = Driver(program, model_dir)
    frame = "{}<x>{}" if "<x>" in peer.get_vocab() else "½{}" if name == "charsmap" else "\n{}"
    characters = [chr(c) for c in code_points(every)]
    encode = getattr(peer, "encode_batch_fast", peer.encode_batch)  # without offsets, where the release has it
    different = []

    def narrow(part):
        text = "".join(frame.replace("{}", c) for c in part)
        if driver.encode(text, False) == encode([text], add_special_tokens=False)[0].ids:
            return
        if len(part) == 1:
            different.append(f"U+{ord(part[0]):04X}")
            return
        narrow(part[:len(part) // 2])
        narrow(part[len(part) // 2:])

    # The package takes longer than in proportion to a text's added tokens.
    for start in range(0, len(characters), 256):
        narrow(characters[start:start + 256])
    driver.close()
    if different:
        raise Difference(f"{name}: {len(different)} characters differ: {' '.join(different[:20])}")


def trained_tokenizers():
    """The package's own unigram models, in the pipelines that published models have."""
    rng = random.Random(1)
    texts = [" ".join(rng.choice(cases.WORDS) for _ in range(20)) for _ in range(400)]
    for name, content in cases.unigram_tokenizers(rng):
        if name not in ("unigram t5", "unigram llama", "unigram split"):
            continue
        peer = tokenizers.Tokenizer.from_str(json.dumps(content))
        alphabet = [piece for piece, _ in content["model"]["vocab"][3:259]] if content["model"]["byte_fallback"] else []
        peer.train_from_iterator(texts, tokenizers.trainers.UnigramTrainer(
            vocab_size=700, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"] + alphabet, show_progress=False))
        trained = json.loads(peer.to_str())
        trained["model"]["byte_fallback"] = content["model"]["byte_fallback"]
        trained["added_tokens"] = [token for token in trained["added_tokens"] if token["content"] not in alphabet]
        yield f"trained {name}", trained


def real_tokenizers(shared, folder):
    committed = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "tokenizers")
    for name in sorted(os.listdir(committed)):
        if os.path.isdir(os.path.join(committed, name)):
            yield f"cut {name}", os.path.join(committed, name)
    archive = os.path.join(shared, "data", "tokenizers.tar.xz")
    if not os.path.exists(archive):
        print(f"SKIPPED in part: {archive} is not there; the tokenizers of well-known models are compared as cut only")
        return
    with tarfile.open(archive) as tar:
        tar.extractall(folder)
    for root, _, names in sorted(os.walk(folder)):
        if "tokenizer.json" in names:
            yield os.path.basename(root), root


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--every", type=int, default=1, help="of the characters, compare each Nth (default: 1)")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    driver = os.path.join(os.environ["NANOVLLM_BIN"], "tokenizer_driver")
    shared = os.environ.get("NANOVLLM_SHARED", "")
    failures, count = 0, 0

    with tempfile.TemporaryDirectory() as folder:
        def write(name, content):
            path = os.path.join(folder, str(len(os.listdir(folder))))
            os.mkdir(path)
            with open(os.path.join(path, "tokenizer.json"), "w", encoding="utf-8") as file:
                json.dump(content, file, ensure_ascii=len(name) % 2 == 0)
            return path

        def comparisons():
            for name, content in cases.small_tokenizers(random.Random(options.seed)):
                yield name, lambda: compare(driver, write(name, content),
                                            random.Random(f"{options.seed} {name}"), options.rounds)
            for name, content in [*cases.unigram_tokenizers(random.Random(options.seed)), *trained_tokenizers()]:
                yield name, lambda: compare(driver, write(name, content),
                                            random.Random(f"{options.seed} {name}"), options.rounds)
            for name, content in cases.character_tokenizers():
                yield f"all characters, {name}", lambda: compare_characters(
                    driver, name, write(name, content), options.every)
            yield "models/demo", lambda: compare(driver, os.environ["NANOVLLM_MODEL"],
                                                 random.Random(options.seed), options.rounds)
            for name, path in real_tokenizers(shared, os.path.join(folder, "real")):
                yield name, lambda: compare(driver, path, random.Random(f"{options.seed} {name}"),
                                            options.rounds)

        for name, run in comparisons():
            if options.only not in name:
                continue
            count += 1
            try:
                run()
            except (Difference, RuntimeError) as error:
                failures += 1
                print(f"{name}: {error}", file=sys.stderr)
    print(f"{count - failures} of {count} tokenizers agree, on {options.rounds} texts or "
          f"on 1 in {options.every} of the characters")
    sys.exit(1 if failures or not count else 0)


if __name__ == "__main__":
    main()
