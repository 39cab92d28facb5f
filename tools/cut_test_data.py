#!/usr/bin/env python3
"""Writes what of the reference data everybody may have: tests/data/tokenizers, tests/data/tokenizer_vectors and the vectors in
tests/data/chat_templates. Their SOURCES.md say from where all of it comes and under which licence.

usage: cut_test_data.py ARCHIVES    (a folder of tokenizers.tar.xz, tokenizer-vectors.tar.xz, chat-templates.tar.xz)

Tokenizers are cut to what the texts of the vectors can need. A byte-pair model applies, of the merges whose pair stands side by
side, the one of the least rank; merges whose pair never does so in any of the texts are not missed. Ids and order stay. Added
tokens stand in the vocabulary too, for readers count their ids from its size where they don't. Needs the package tokenizers.
"""
import argparse
import json
import pathlib
import re
import shutil
import sys
import tarfile
import tempfile

import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
sys.path.insert(0, str(ROOT / "tests"))
import tokenizer_cases as cases  # noqa: E402

TOKENIZERS = ["gpt2", "mistral-v0.2", "phi-3-mini", "qwen2.5", "qwen3"]
# Files of transformers.js, and the models of each whose ids are kept; of the others only the texts are.
VECTORS = {"gemma": [], "gpt2": ["Xenova/gpt2", "openai-community/gpt2"], "llama": [], "qwen2": ["Xenova/Qwen1.5-0.5B-Chat"]}
LLAMA_CPP = ["deepseek-r1-qwen", "gpt-2", "phi-3", "qwen2"]
CHAT_VECTORS = {
    "default_templates": ["_base", "blenderbot_small", "gpt2", "llama"],
    "custom_templates": ["CISCai/Mistral-7B-Instruct-v0.3-SOTA-GGUF", "HuggingFaceH4/zephyr-7b-beta (add_generation_prompt=false)",
                         "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-0.6B", "TheBloke/Mistral-7B-Instruct-v0.1-GPTQ",
                         "deepseek-ai/DeepSeek-R1", "mistralai/Mistral-Nemo-Instruct-2407", "openchat/openchat-3.5-0106",
                         "zai-org/GLM-5.1"]}


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def write(path, content, **layout):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, **layout) + "\n", encoding="utf-8")


# --- vectors -------------------------------------------------------------------------------------

def cut_vectors(source):
    """Copies what is kept, and returns all texts."""
    texts = set()
    for name, kept in VECTORS.items():
        vectors = read(source / "transformers.js" / f"{name}.json")
        given = {model: [{"text": case["text"], "ids": case["ids"], "decoded": case["decoded"]} for case in vectors[model]]
                 for model in kept}
        if not kept:
            given = {"texts": [{"text": text} for text in dict.fromkeys(case["text"] for model in vectors.values() for case in model)]}
        write(DATA / "tokenizer_vectors" / "transformers.js" / f"{name}.json", given, indent=0)
        texts.update(case["text"] for model in vectors.values() for case in model)
    (DATA / "tokenizer_vectors" / "llama.cpp").mkdir(parents=True, exist_ok=True)
    for name in LLAMA_CPP:
        for kind in ("inp", "out"):
            path = source / "llama.cpp" / f"ggml-vocab-{name}.gguf.{kind}"
            shutil.copyfile(path, DATA / "tokenizer_vectors" / "llama.cpp" / path.name)
        texts.update(path.with_suffix(".inp").read_bytes().decode().split("\n__ggml_vocab_test__\n"))
    return sorted(texts)


def cut_chat_vectors(source):
    vectors = read(source / "chat_template_vectors.json")
    write(DATA / "chat_templates" / "chat_template_vectors.json",
          {group: {name: vectors[group][name] for name in names} for group, names in CHAT_VECTORS.items()}, indent=1)
    snippets = read(source / "jinja_syntax_vectors.json")
    fields = ("name", "template", "context", "has_function", "expected_jinja2")
    write(DATA / "chat_templates" / "jinja_syntax_vectors.json", [{name: snippet[name] for name in fields} for snippet in snippets],
          indent=0)


# --- tokenizers ----------------------------------------------------------------------------------

def words_of(tokenizer, added, text):
    """The words that are merged in a text, however added tokens cut it, before or behind the normalizer."""
    def normalized(part):
        return tokenizer.normalizer.normalize_str(part) if tokenizer.normalizer else part

    def parts(whole):
        cut = re.split("|".join(map(re.escape, sorted(added, key=len, reverse=True))), whole)
        return {whole, *cut, *(part.lstrip() for part in cut)}

    for part in {normalized(part) for part in parts(text)} | parts(normalized(text)):
        if tokenizer.pre_tokenizer:
            yield from (word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(part))
        else:
            yield part


def pairs_of(word, ranks):
    """The pairs with a rank that stand side by side at some step."""
    symbols, seen = list(word), set()
    while True:
        pairs = [(ranks[pair], at) for at, pair in enumerate(zip(symbols, symbols[1:])) if pair in ranks]
        seen.update((symbols[at], symbols[at + 1]) for _, at in pairs)
        if not pairs:
            return seen
        at = min(pairs)[1]
        symbols[at:at + 2] = [symbols[at] + symbols[at + 1]]


def cut_tokenizer(source, target, texts):
    tokenizer = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    content = read(source / "tokenizer.json")
    model, added = content["model"], {token["content"]: token["id"] for token in content["added_tokens"]}
    pair_of = {str(merge): tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]}
    ranks = {pair: rank for rank, pair in enumerate(pair_of.values())}
    words = {word for text in texts for word in words_of(tokenizer, added, text)}
    pairs = set().union(*(pairs_of(word, ranks) for word in words))
    kept = {*added, model["unk_token"], *"".join(words), *tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            *(f"<0x{byte:02X}>" for byte in range(256))}
    kept.update(token for left, right in pairs for token in (left, right, left + right))
    vocabulary = {token: index for token, index in model["vocab"].items() if token in kept} | added
    model["vocab"] = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    model["merges"] = [merge for merge in model["merges"] if pair_of[str(merge)] in pairs]
    write(target / "tokenizer.json", content, separators=(",", ":"))
    for path in sorted(source.iterdir()):
        if path.name in ("config.json", "generation_config.json", "tokenizer_config.json"):
            shutil.copyfile(path, target / path.name)
    print(f"{target.name}: {len(model['vocab'])} tokens, {len(model['merges'])} of {len(ranks)} merges")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("archives", type=pathlib.Path)
    archives = parser.parse_args().archives
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for archive in ("tokenizers", "tokenizer-vectors", "chat-templates"):
            with tarfile.open(archives / f"{archive}.tar.xz") as tar:
                tar.extractall(folder)
        texts = cut_vectors(folder / "tokenizer-vectors") + [" ".join(cases.WORDS), "".join(cases.BLANKS)]
        for tokenizer in TOKENIZERS:
            cut_tokenizer(folder / "tokenizers" / tokenizer, DATA / "tokenizers" / tokenizer, texts)
        cut_chat_vectors(folder / "chat-templates")


if __name__ == "__main__":
    main()
