#!/usr/bin/env python3
"""Writes tests/data/tokenizer_configs.json: the ids that transformers 4.57's AutoTokenizer gives, and the text without special
tokens that it makes of them, for folders whose tokenizer_config.json says other than tokenizer.json. It needs transformers 4.57.
"""
import json
import pathlib
import sys
import tempfile

from transformers import AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import tokenizer_config_cases as cases  # noqa: E402


def record(name, tokenizer_name, config):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "tokenizer.json").write_text(json.dumps(cases.TOKENIZERS[tokenizer_name]))
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = AutoTokenizer.from_pretrained(folder)
    results = []
    for text in cases.TEXTS:
        ids = tokenizer.encode(text)
        results.append({"ids": ids, "plain": tokenizer.encode(text, add_special_tokens=False),
                        "decoded": tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)})
    return {"name": name, "tokenizer": tokenizer_name, "config": config, "results": results}


def main():
    content = {"tokenizers": cases.TOKENIZERS, "texts": cases.TEXTS, "cases": [record(*case) for case in cases.cases()]}
    lines = [f" {json.dumps(key)}: " + json.dumps(value, ensure_ascii=False).replace('}, {"name"', '},\n  {"name"')
             for key, value in content.items()]
    (ROOT / "tests" / "data" / "tokenizer_configs.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
