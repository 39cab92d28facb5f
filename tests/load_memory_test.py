"""Peak memory of loading a quantised file: at most 1.1 times what is packed and one tensor more, on the real binary.

The files are written here: random blocks of GGUF's types, and of all else as little as a model needs.
"""
import dataclasses
import json
import os
import random
import struct
import subprocess
import sys
import unittest

from cli_testing import BINARY, SANITIZED, CliTest

VOCABULARY, EXPERTS, HEAD = 16384, 16, 64
# Of ggml's types: id, weights and bytes of a block, where float16 numbers stand in it.
F32, Q8_0, Q4_K, Q6_K = (0, 1, 4, ()), (8, 32, 34, (0,)), (12, 256, 144, (0, 2)), (14, 256, 210, (208,))
UINT32, FLOAT32, INT32, STRING, ARRAY = 4, 6, 5, 8, 9
ALIGNMENT = 32
MIB = 1 << 20


@dataclasses.dataclass
class Shape:
    architecture: str
    layers: int
    kind: tuple
    other: tuple  # of v and down, as in a Q4_K_M
    hidden: int = 1024
    inner: int = 4096  # of an expert an eighth, but no less than a block

    def __post_init__(self):
        self.heads, self.kv_heads, self.is_mixture = self.hidden // HEAD, self.hidden // HEAD // 4, self.architecture.endswith("moe")
        self.expert_inner = max(self.inner // 8, 256)


def bytes_of(kind, dimensions):
    size = 1
    for n in dimensions:
        size *= n
    return size // kind[1] * kind[2]


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def key(name, kind, value):
    if kind == STRING:
        return text(name) + struct.pack("<I", STRING) + text(value)
    return text(name) + struct.pack("<I" + {UINT32: "I", FLOAT32: "f"}[kind], kind, value)


def array(name, kind, values):
    items = b"".join(text(value) if kind == STRING else struct.pack("<i", value) for value in values)
    return text(name) + struct.pack("<IIQ", ARRAY, kind, len(values)) + items


def metadata(shape):
    """Encoded keys, as a list."""
    words = [chr(c) for c in range(33, 127)] + [f"<{i}>" for i in range(VOCABULARY - 94)]
    values = [("block_count", UINT32, shape.layers), ("context_length", UINT32, 512), ("embedding_length", UINT32, shape.hidden),
              ("feed_forward_length", UINT32, shape.inner), ("attention.head_count", UINT32, shape.heads), ("attention.head_count_kv", UINT32, shape.kv_heads),
              ("attention.key_length", UINT32, HEAD), ("attention.value_length", UINT32, HEAD), ("attention.layer_norm_rms_epsilon", FLOAT32, 1e-6),
              ("rope.freq_base", FLOAT32, 1e6)]
    if shape.is_mixture:
        values += [("expert_count", UINT32, EXPERTS), ("expert_used_count", UINT32, 4), ("expert_feed_forward_length", UINT32, shape.expert_inner)]
    return [key("general.architecture", STRING, shape.architecture), *(key(f"{shape.architecture}.{name}", kind, value) for name, kind, value in values),
            key("tokenizer.ggml.model", STRING, "gpt2"), key("tokenizer.ggml.pre", STRING, "qwen2"),
            array("tokenizer.ggml.tokens", STRING, words), array("tokenizer.ggml.token_type", INT32, [1] * 94 + [4] * (VOCABULARY - 94)),
            array("tokenizer.ggml.merges", STRING, []), key("tokenizer.ggml.eos_token_id", UINT32, 94)]


def tensors(shape):
    """Names, types and shapes, slowest dimension first."""
    kind, other, hidden = shape.kind, shape.other, shape.hidden
    yield "token_embd.weight", Q8_0, (VOCABULARY, hidden)
    yield "output_norm.weight", F32, (hidden,)
    inner, experts, suffix = (shape.expert_inner, (EXPERTS,), "_exps") if shape.is_mixture else (shape.inner, (), "")
    for i in range(shape.layers):
        for name, rows, cols, of in (("attn_q", shape.heads * HEAD, hidden, kind), ("attn_k", shape.kv_heads * HEAD, hidden, kind),
                                     ("attn_v", shape.kv_heads * HEAD, hidden, other), ("attn_output", hidden, shape.heads * HEAD, kind)):
            yield f"blk.{i}.{name}.weight", of, (rows, cols)
        for name, size in (("attn_q_norm", HEAD), ("attn_k_norm", HEAD), ("attn_norm", hidden), ("ffn_norm", hidden)):
            yield f"blk.{i}.{name}.weight", F32, (size,)
        for name, rows, cols, of in (("gate", inner, hidden, kind), ("up", inner, hidden, kind), ("down", hidden, inner, other)):
            yield f"blk.{i}.ffn_{name}{suffix}.weight", of, (*experts, rows, cols)
        if shape.is_mixture:
            yield f"blk.{i}.ffn_gate_inp.weight", F32, (EXPERTS, hidden)


def some_blocks(kind):
    """About a MiB of a type's blocks."""
    _, weights, size, scales = kind
    if kind == F32:
        return struct.pack("<f", 1) * (MIB // 4)
    blocks = bytearray(random.Random(weights + size).randbytes(MIB // size * size))
    for at in scales:  # float16 0.0005, or else a random one might be no number
        blocks[at::size], blocks[at + 1::size] = b"\x19" * (len(blocks) // size), b"\x10" * (len(blocks) // size)
    return bytes(blocks)


def write_model(path, shape):
    """Returns the bytes of the largest tensor. Holds some MiB at most, for the peak of a child begins with its parent's memory."""
    keys, entries = metadata(shape), list(tensors(shape))
    header, offset = b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(keys)) + b"".join(keys), 0
    for name, of, dimensions in entries:
        header += text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *reversed(dimensions), of[0], offset)
        offset += -(-bytes_of(of, dimensions) // ALIGNMENT) * ALIGNMENT
    chunks = {of: some_blocks(of) for of in (F32, Q8_0, shape.kind, shape.other)}
    with open(path, "wb") as file:
        file.write(header + bytes(-len(header) % ALIGNMENT))
        for _, of, dimensions in entries:
            left = bytes_of(of, dimensions)
            padding = -left % ALIGNMENT
            while left > 0:
                left -= file.write(chunks[of][:left])
            file.write(bytes(padding))
    return max(bytes_of(of, dimensions) for _, of, dimensions in entries)


def load(model, *flags):
    """What its layouts take, in bytes by name, and the process's memory at its peak: VmHWM, which wait4() gives once it has ended."""
    command = [BINARY, "info", str(model), "--json", "--kv-cache-memory", "8M", "--num-threads", "2", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, error = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise AssertionError(error)
    return {name: layout["bytes"] for name, layout in json.loads(out)["weight_layouts"].items()}, usage.ru_maxrss * 1024


@unittest.skipUnless(sys.platform == "linux", "VmHWM is Linux's")
@unittest.skipIf(SANITIZED, "sanitizers' own memory is more than the model's")
class LoadMemory(CliTest):
    def check(self, shape, layouts, *flags):
        """With layouts that have to be among the model's; a mixture's router has another one."""
        # All that does not grow with the weights: the program, its libraries, the vocabulary, the cache.
        path = self.path("small.gguf")
        write_model(path, dataclasses.replace(shape, layers=1, hidden=256, inner=256))
        packed, peak = load(path, *flags)
        fixed = peak - sum(packed.values())
        path = self.path("large.gguf")
        largest = write_model(path, shape)
        packed, peak = load(path, *flags)
        size = sum(packed.values())
        bound = 1.1 * size + largest
        print(f"{shape.architecture}, {os.path.getsize(path) / MIB:.1f} MiB {' '.join(flags)}: packed {size / MIB:.1f} MiB, largest tensor {largest / MIB:.1f}, "
              f"peak {peak / MIB:.1f}, of which {fixed / MIB:.1f} are not of the model: {(peak - fixed) / MIB:.1f}, at most {bound / MIB:.1f}", file=sys.stderr)
        self.assertLessEqual(layouts, set(packed))
        self.assertGreater(size, 60 * MIB)
        self.assertGreater(peak, size)
        self.assertLess(fixed, 60 * MIB)
        self.assertLess(peak - fixed, bound)

    def test_of_k_quants(self):
        self.check(Shape("qwen3", 8, Q4_K, Q6_K), {"super", "byte"})

    def test_of_8_bits(self):
        self.check(Shape("qwen3", 6, Q8_0, Q8_0), {"byte"})

    def test_of_experts(self):
        self.check(Shape("qwen3moe", 4, Q4_K, Q6_K), {"super", "byte"})

    def test_of_decoded_weights(self):
        self.check(Shape("qwen3", 4, Q4_K, Q6_K), set(), "--weight-layout", "bfloat16")


if __name__ == "__main__":
    unittest.main()
