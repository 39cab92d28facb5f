#!/usr/bin/env python3
"""Writes a model folder with normal random bfloat16 weights, as the benchmarks' MODEL: speed does not depend on training.

SOURCE is a folder with config.json and the tokenizer's files of a Qwen3 or a Qwen3-MoE; weights are not read. The same
folder can be turned into a GGUF file by llama.cpp's convert_hf_to_gguf.py --outtype bf16.

  bench/make_random_model.py SOURCE MODEL
"""
import argparse
import json
import pathlib
import shutil
import struct

import numpy as np

FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")


def feed_forward(config):
    """Name and shape of each matrix of a layer's feed-forward block, or mixture of them."""
    hidden, num_experts = config["hidden_size"], config.get("num_experts", 0)
    inner = config["moe_intermediate_size" if num_experts else "intermediate_size"]
    if num_experts:
        yield "mlp.gate", (num_experts, hidden)
    for block in [f"mlp.experts.{i}" for i in range(num_experts)] or ["mlp"]:
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            yield f"{block}.{name}_proj", shape


def tensors(config):
    """Name and shape of each tensor of the model; norms have one dimension."""
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, shape in (("q", (queries, hidden)), ("k", (keys, hidden)), ("v", (keys, hidden)), ("o", (hidden, queries))):
            yield f"{prefix}self_attn.{name}_proj.weight", shape
        for name, shape in feed_forward(config):
            yield f"{prefix}{name}.weight", shape
        for name, size in (("self_attn.q_norm", head), ("self_attn.k_norm", head), ("input_layernorm", hidden), ("post_attention_layernorm", hidden)):
            yield f"{prefix}{name}.weight", (size,)
    yield "model.norm.weight", (hidden,)
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", (config["vocab_size"], hidden)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path, help="folder with config.json and tokenizer")
    parser.add_argument("model", type=pathlib.Path, help="folder to write")
    args = parser.parse_args()
    if not (args.source / "config.json").is_file():
        parser.error(f"there is no {args.source}/config.json; SOURCE has to be a model folder")
    config = json.loads((args.source / "config.json").read_text())
    if config.get("model_type") not in ("qwen3", "qwen3_moe"):
        parser.error(f"{args.source}/config.json is of {config.get('model_type')}, expected qwen3 or qwen3_moe")
    args.model.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (args.source / name).exists():
            shutil.copy(args.source / name, args.model)
    header, end = {}, 0
    for name, shape in tensors(config):
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(0)
    with open(args.model / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors(config):
            values = np.ones(shape, np.float32) if len(shape) == 1 else random.standard_normal(shape, np.float32) * np.float32(0.02)
            file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())  # bfloat16: the upper half


if __name__ == "__main__":
    main()
