#!/usr/bin/env python3
"""Writes a GGUF file of a Qwen3's or Qwen3.5's shape with random weights, for benchmarks: speed does not depend on training.

SOURCE is a GGUF file whose tokenizer is taken. The formats are bf16, q8_0, all matrices in Q8_0, and q4_k_m, the mixture of
Q4_K and Q6_K that llama.cpp calls so.

  bench/make_random_gguf.py SOURCE.gguf MODEL.gguf --shape 0.6b --format q4_k_m
"""
import argparse
import pathlib
import random
import struct
import typing



class Shape(typing.NamedTuple):
    layers: int
    hidden: int
    inner: int
    queries: int
    keys: int
    tied: bool  # whether the head is the table of embeddings
    experts: int = 0
    used: int = 0  # experts of a token
    head: int = 128
    values: int = 0  # value heads of recurrent layers, three of four; as many key heads, but 16 at most


SHAPES = {
    "0.6b": Shape(28, 1024, 3072, 16, 8, True),
    "8b": Shape(36, 4096, 12288, 32, 8, False),
    "mixture": Shape(16, 2048, 768, 32, 4, False, experts=32, used=8),
    "hybrid-0.8b": Shape(24, 1024, 3584, 8, 2, True, head=256, values=16),
    "hybrid-9b": Shape(32, 4096, 12288, 16, 4, False, head=256, values=32),
}
STATE = 128  # size of keys and values of recurrent layers
CONV = 4
FORMATS = {"bf16": ("BF16", "BF16"), "q8_0": ("Q8_0", "Q8_0"), "q4_k_m": ("Q4_K", "Q6_K")}
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
# GGML's number of a type, weights and bytes of a block
TYPES = {"ones": (0, 1, 4), "minus ones": (0, 1, 4), "F32": (0, 1, 4), "BF16": (30, 1, 2), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}
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
    if isinstance(value, list):
        return text(key) + struct.pack(f"<IIQ{len(value)}I", ARRAY, UINT32, len(value), *value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", FLOAT32, value)
    return text(key) + struct.pack("<II", UINT32, value)


def block(kind):
    """Random codes with scales that give weights of about 0.02."""
    if kind in ("ones", "minus ones"):
        return struct.pack("<f", 1 if kind == "ones" else -1)
    if kind == "F32":
        return struct.pack("<f", random.gauss(0, 0.02))
    if kind == "BF16":
        return struct.pack("<f", random.gauss(0, 0.02))[2:]
    if kind == "Q8_0":
        return struct.pack("<e", 0.0003) + random.randbytes(32)
    if kind == "Q4_K":
        return struct.pack("<ee", 1e-4, 7e-4) + random.randbytes(140)
    return random.randbytes(208) + struct.pack("<e", 1.5e-5)


def attention(shape, low, values):
    """Name, dimensions (columns first) and type of each tensor; a hybrid's queries have gates beside them."""
    hidden, head = shape.hidden, shape.head
    queries, keys = shape.queries * head, shape.keys * head
    yield "attn_q", (hidden, queries * (2 if shape.values else 1)), low
    yield "attn_k", (hidden, keys), low
    yield "attn_v", (hidden, keys), values
    yield "attn_output", (queries, hidden), low
    yield "attn_q_norm", (head,), "ones"
    yield "attn_k_norm", (head,), "ones"


def recurrent(shape, low):
    hidden, values = shape.hidden, shape.values
    inner = values * STATE
    channels = inner + 2 * min(values, 16) * STATE
    yield "attn_qkv", (hidden, channels), low
    yield "attn_gate", (hidden, inner), low
    yield "ssm_alpha", (hidden, values), low
    yield "ssm_beta", (hidden, values), low
    yield "ssm_conv1d", (CONV, channels), "F32"
    yield "ssm_a", (values,), "minus ones"
    yield "ssm_dt.bias", (values,), "ones"
    yield "ssm_norm", (STATE,), "ones"
    yield "ssm_out", (inner, hidden), low


def feed_forward(shape, low, values):
    suffix, stack = ("_exps", (shape.experts,)) if shape.experts else ("", ())
    if shape.experts:
        yield "ffn_gate_inp", (shape.hidden, shape.experts), "F32"
    yield f"ffn_gate{suffix}", (shape.hidden, shape.inner, *stack), low
    yield f"ffn_up{suffix}", (shape.hidden, shape.inner, *stack), low
    yield f"ffn_down{suffix}", (shape.inner, shape.hidden, *stack), values


def tensors(shape, vocab, form):
    layers, hidden = shape.layers, shape.hidden
    low, high = FORMATS[form]
    yield "token_embd", (hidden, vocab), high if shape.tied else low
    for i in range(layers):
        more = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
        values = high if more else low
        mixer = recurrent(shape, low) if shape.values and i % 4 != 3 else attention(shape, low, values)
        norm = "post_attention_norm" if shape.values else "ffn_norm"
        for name, dims, kind in [("attn_norm", (hidden,), "ones"), *mixer, (norm, (hidden,), "ones"), *feed_forward(shape, low, values)]:
            yield f"blk.{i}.{name}", dims, kind
    yield "output_norm", (hidden,), "ones"
    if not shape.tied:
        yield "output", (hidden, vocab), high


def settings(shape):
    """The architecture's name and its numbers."""
    numbers = {"block_count": shape.layers, "context_length": 40960, "embedding_length": shape.hidden, "feed_forward_length": shape.inner,
               "attention.head_count": shape.queries, "attention.head_count_kv": shape.keys, "attention.key_length": shape.head,
               "attention.value_length": shape.head, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6}
    if shape.experts:
        numbers |= {"expert_count": shape.experts, "expert_used_count": shape.used, "expert_feed_forward_length": shape.inner}
    if shape.values:
        numbers |= {"full_attention_interval": 4, "rope.dimension_count": shape.head // 4, "ssm.conv_kernel": CONV, "ssm.state_size": STATE,
                    "ssm.group_count": min(shape.values, 16), "ssm.time_step_rank": shape.values, "ssm.inner_size": shape.values * STATE,
                    "rope.dimension_sections": [shape.head // 24 + 1, shape.head // 24 + 1, shape.head // 24, 0]}
    return "qwen35" if shape.values else "qwen3moe" if shape.experts else "qwen3", numbers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--format", choices=FORMATS, required=True)
    args = parser.parse_args()
    tokenizer, vocab = tokenizer_of(args.source.read_bytes())
    shape = SHAPES[args.shape]
    name, numbers = settings(shape)
    fields = [field("general.architecture", name), field("general.alignment", 32)]
    fields += [field(f"{name}.{key}", value) for key, value in numbers.items()] + tokenizer
    infos, sizes, offset = [], [], 0
    for tensor, dims, kind in tensors(shape, vocab, args.format):
        number, weights, size = TYPES[kind]
        count = 1
        for dim in dims:
            count *= dim
        full_name = tensor if tensor.endswith(("ssm_a", ".bias")) else f"{tensor}.weight"
        infos.append(text(full_name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset))
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
