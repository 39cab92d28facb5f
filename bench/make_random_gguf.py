#!/usr/bin/env python3
"""Writes a GGUF file of a Qwen3's shape with random codes, for benchmarks of quantised weights: speed does not depend on training.

SOURCE is a GGUF file whose tokenizer is taken. The formats are q8_0, all matrices in Q8_0, and q4_k_m, the mixture of Q4_K and
Q6_K that llama.cpp calls so.

  bench/make_random_gguf.py SOURCE.gguf MODEL.gguf --shape 0.6b --format q4_k_m
"""
import argparse
import pathlib
import random
import struct

# layers, hidden, inner, query heads, key heads, whether the head is the table of embeddings; experts, of which for a token
SHAPES = {
    "0.6b": (28, 1024, 3072, 16, 8, True, 0, 0),
    "8b": (36, 4096, 12288, 32, 8, False, 0, 0),
    "mixture": (16, 2048, 768, 32, 4, False, 32, 8),
}
HEAD = 128
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
# GGML's number of a type, weights and bytes of a block
TYPES = {"ones": (0, 1, 4), "F32": (0, 1, 4), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}
REPEATED = 4096  # blocks


def skip(data, at, kind):
    """Behind a value."""
    if kind == STRING:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind != ARRAY:
        return at + SIZES[kind]
    element, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if element in SIZES:
        return at + count * SIZES[element]
    for _ in range(count):
        at = skip(data, at, element)
    return at


def tokenizer_of(data):
    """The file's fields of its tokenizer as they are, and how many tokens it has."""
    count = struct.unpack_from("<Q", data, 16)[0]
    at, fields, vocab = 24, [], 0
    for _ in range(count):
        begin, size = at, struct.unpack_from("<Q", data, at)[0]
        key = data[at + 8:at + 8 + size].decode()
        kind = struct.unpack_from("<I", data, at + 8 + size)[0]
        value = at + 12 + size
        at = skip(data, value, kind)
        if key.startswith("tokenizer."):
            fields.append(data[begin:at])
        if key == "tokenizer.ggml.tokens":
            vocab = struct.unpack_from("<Q", data, value + 4)[0]
    return fields, vocab


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def field(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", FLOAT32, value)
    return text(key) + struct.pack("<II", UINT32, value)


def block(kind):
    """Random codes with scales that give weights of about 0.02."""
    if kind == "ones":
        return struct.pack("<f", 1)
    if kind == "F32":
        return struct.pack("<f", random.gauss(0, 0.02))
    if kind == "Q8_0":
        return struct.pack("<e", 0.0003) + random.randbytes(32)
    if kind == "Q4_K":
        return struct.pack("<ee", 1e-4, 7e-4) + random.randbytes(140)
    return random.randbytes(208) + struct.pack("<e", 1.5e-5)


def matrices(shape, vocab, form):
    """Name, dimensions (columns first) and type of each tensor."""
    layers, hidden, inner, queries, keys, tied, experts, _ = shape
    low, high = ("Q4_K", "Q6_K") if form == "q4_k_m" else ("Q8_0", "Q8_0")
    yield "token_embd", (hidden, vocab), high if tied else low
    for i in range(layers):
        more = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
        values = high if more else low
        yield f"blk.{i}.attn_norm", (hidden,), "ones"
        yield f"blk.{i}.attn_q", (hidden, queries * HEAD), low
        yield f"blk.{i}.attn_k", (hidden, keys * HEAD), low
        yield f"blk.{i}.attn_v", (hidden, keys * HEAD), values
        yield f"blk.{i}.attn_output", (queries * HEAD, hidden), low
        yield f"blk.{i}.attn_q_norm", (HEAD,), "ones"
        yield f"blk.{i}.attn_k_norm", (HEAD,), "ones"
        yield f"blk.{i}.ffn_norm", (hidden,), "ones"
        suffix, stack = ("_exps", (experts,)) if experts else ("", ())
        if experts:
            yield f"blk.{i}.ffn_gate_inp", (hidden, experts), "F32"
        yield f"blk.{i}.ffn_gate{suffix}", (hidden, inner, *stack), low
        yield f"blk.{i}.ffn_up{suffix}", (hidden, inner, *stack), low
        yield f"blk.{i}.ffn_down{suffix}", (inner, hidden, *stack), values
    yield "output_norm", (hidden,), "ones"
    if not tied:
        yield "output", (hidden, vocab), high


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--format", choices=("q8_0", "q4_k_m"), required=True)
    args = parser.parse_args()
    layers, hidden, inner, queries, keys, _, experts, used = shape = SHAPES[args.shape]
    tokenizer, vocab = tokenizer_of(args.source.read_bytes())
    name = "qwen3moe" if experts else "qwen3"
    fields = [field("general.architecture", name), field("general.alignment", 32)]
    numbers = {"block_count": layers, "context_length": 40960, "embedding_length": hidden, "feed_forward_length": inner,
               "attention.head_count": queries, "attention.head_count_kv": keys, "attention.key_length": HEAD,
               "attention.value_length": HEAD, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6}
    if experts:
        numbers |= {"expert_count": experts, "expert_used_count": used, "expert_feed_forward_length": inner}
    fields += [field(f"{name}.{key}", value) for key, value in numbers.items()] + tokenizer
    infos, sizes, offset = [], [], 0
    for tensor, dims, kind in matrices(shape, vocab, args.format):
        number, weights, size = TYPES[kind]
        count = 1
        for dim in dims:
            count *= dim
        infos.append(text(f"{tensor}.weight") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset))
        sizes.append((kind, count // weights))
        offset += -(-count // weights * size // 32) * 32
    with args.model.open("wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(fields)) + b"".join(fields) + b"".join(infos))
        repeated = {kind: b"".join(block(kind) for _ in range(REPEATED)) for kind in TYPES}
        for kind, count in sizes:
            out.write(b"\0" * (-out.tell() % 32))
            some = repeated[kind]
            size = len(some) // REPEATED
            for _ in range(count // REPEATED):
                out.write(some)
            out.write(some[:count % REPEATED * size])


if __name__ == "__main__":
    main()
