#!/usr/bin/env python3
"""Makes tests/data/ggml_formats.gguf: blocks of every quantised type, and what gguf-py decodes them to.

Usage: make_ggml_goldens.py [--out FILE]

Needs numpy and gguf (0.19.0 made the file). Tensor TYPE holds random codes with finite scales, where gguf-py can quantise
also quantised numbers; tensor TYPE.float32 holds them decoded.
"""
import argparse
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

SIMPLE = [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.IQ4_NL, Type.MXFP4]
# Where the 16-bit floats of a block stand, in bytes.
HALVES = {Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0], Type.IQ4_NL: [0],
          Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.IQ4_XS: [0],
          Type.MXFP4: []}


def random_blocks(kind, rows, blocks, generator):
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = generator.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in HALVES[kind]:
        scales = generator.normal(0, 0.02, (rows, blocks)).astype(np.float16)
        data[:, :, at:at + 2] = scales.view(np.uint8).reshape(rows, blocks, 2)
    if kind == Type.MXFP4:
        data[:, :, 0] = generator.integers(0, 255, (rows, blocks))  # 255 is no number
    return data.reshape(rows, blocks * size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = pathlib.Path(__file__).parent.parent / "tests" / "data" / "ggml_formats.gguf"
    parser.add_argument("--out", type=pathlib.Path, default=default)
    out = parser.parse_args().out
    generator = np.random.default_rng(30)
    writer = gguf.GGUFWriter(out, "formats")
    for kind in HALVES:
        data = random_blocks(kind, 3 if kind in SIMPLE else 2, 3 if kind in SIMPLE else 2, generator)
        try:
            numbers = generator.normal(0, 1, (1, data.shape[1] // gguf.GGML_QUANT_SIZES[kind][1] *
                                              gguf.GGML_QUANT_SIZES[kind][0])).astype(np.float32)
            data = np.concatenate([data, gguf.quants.quantize(numbers, kind)])
        except NotImplementedError:
            pass  # gguf-py only decodes it
        decoded = gguf.quants.dequantize(data, kind)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        writer.add_tensor(kind.name + ".float32", decoded.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{out}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
