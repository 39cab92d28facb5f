#!/usr/bin/env python3
"""Makes tests/data/quantized: tiny quantised matrices of every format that a Hugging Face folder may have, and what the
packages make of them.

Usage: make_quantized_goldens.py [--out FOLDER]

Needs torch, transformers, safetensors and compressed-tensors. Each folder holds config.json with only its
quantization_config, model.safetensors, and expected/model.safetensors with the matrices in float32.
compressed-tensors 0.17 writes and decodes its formats itself. AutoAWQ, GPTQModel and ModelOpt don't install without a GPU: what
stands here of them follows the functions that are named.
"""
import argparse
import json
import math
import pathlib
import shutil

import safetensors.torch
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32 as unpack
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams

FP8 = torch.float8_e4m3fn
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 1000 * shape[0] + shape[-1])) / 8


def codes(high, *shape, low=0, seed=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed + shape[0]), dtype=torch.int32)


def blocks_of(weight, rows, cols):
    """[rows of blocks, columns of blocks, elements], padded with zeros."""
    padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % cols, 0, -weight.shape[0] % rows))
    return padded.unflatten(0, (-1, rows)).unflatten(2, (-1, cols)).transpose(1, 2).flatten(2)


def compress(weight, args, format, scale_dtype=torch.bfloat16, g_idx=None, scheme={}):
    """The tensors that compressed-tensors writes, and its own decoding in float32."""
    args = QuantizationArgs(**args)
    rows, cols = weight.shape
    group = {"tensor": (rows, cols), "channel": (1, cols), "group": (1, args.group_size), "tensor_group": (1, 16),
             "block": args.block_structure}[args.strategy]
    source = weight if g_idx is None else weight[:, torch.argsort(g_idx)]
    blocks = blocks_of(source, *group)
    state = {}
    if args.strategy == "tensor_group":
        state["weight_global_scale"] = (448 * 6 / weight.abs().max()).reshape(1)
        scale = blocks.abs().amax(-1) / 6 * state["weight_global_scale"]
        scale, zero = scale.to(FP8).float(), None
    else:
        scale, zero = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args)
        scale = scale.to(scale_dtype)
    if args.strategy == "tensor":
        scale, zero = scale.reshape(1), zero.reshape(1)
    state.update(weight=weight.to(scale_dtype), weight_scale=scale)
    if not args.symmetric:
        state["weight_zero_point"] = zero
    if g_idx is not None:
        state["weight_g_idx"] = g_idx
    compressor = BaseCompressor.get_value_from_registry(format)
    stored = compressor.compress(state, QuantizationScheme(targets=["Linear"], weights=args, **scheme))
    # What decompress() does, with the scales in float32.
    plain = dict(stored)
    if "weight_packed" in plain and args.type == "int":
        values = unpack(plain["weight_packed"], args.num_bits, weight.shape)
        zero = plain.get("weight_zero_point")
        if zero is not None:
            zero = unpack(zero, args.num_bits, (rows, scale.shape[-1]), packed_dim=0)
    elif "weight_packed" in plain:
        values, zero = unpack_fp4_from_uint8(plain["weight_packed"], rows, cols, torch.float32), None
    else:
        values, zero = plain["weight"], plain.get("weight_zero_point")
    expected = dequantize(values, plain["weight_scale"].float(), zero, args, torch.float32, g_idx,
                          plain.get("weight_global_scale"))
    if scale_dtype == torch.float32 and format != "nvfp4-pack-quantized" and args.strategy != "block":
        torch.testing.assert_close(expected, compressor.decompress(
            stored, QuantizationScheme(targets=["Linear"], weights=args, **scheme))["weight"], rtol=0, atol=0)
    return stored, expected


def pack(values, bits, dim):
    """[.., n * 32 / bits, ..] of unsigned codes as int32 words, the first code lowest."""
    values = values.unflatten(dim, (-1, 32 // bits)).long()
    shifts = torch.arange(0, 32, bits).view([-1 if i == dim + 1 else 1 for i in range(values.dim())])
    words = (values << shifts).sum(dim + 1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def gptq(bits, group_size, version, desc_act=False, seed=0, rows=32, cols=128):
    """GPTQModel 7.7: pack_block() and dequantize_weight() of nn_modules/qlinear/__init__.py, and for version 1
    convert_gptq_v2_to_v1_format_module() of utils/model.py."""
    groups = math.ceil(cols / (group_size if group_size > 0 else cols))
    weight, zeros = codes(2**bits, cols, rows, seed=seed), codes(2**bits, groups, rows, seed=seed + 1)
    scales = (random(groups, rows, seed=seed).abs() / 2**bits).half()
    g_idx = torch.arange(cols, dtype=torch.int32) // (group_size if group_size > 0 else cols)
    if desc_act:
        g_idx = g_idx[torch.randperm(cols, generator=torch.Generator().manual_seed(seed))]
    qzeros = pack(zeros, bits, 1)
    if version == 1:
        qzeros = qzeros - {4: 0x11111111, 8: 0x01010101}[bits]
    stored = {"qweight": pack(weight, bits, 0), "qzeros": qzeros, "scales": scales, "g_idx": g_idx,
              "bias": torch.zeros(rows, dtype=torch.float16)}
    expected = scales.float()[g_idx.long()] * (weight - zeros[g_idx.long()])
    return stored, expected.T.contiguous()


def awq(group_size, seed=0, rows=32, cols=64):
    """AutoAWQ 0.2.9: WQLinear_GEMM.from_linear() of modules/linear/gemm.py, dequantize_gemm() of
    utils/packing_utils.py."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    size = group_size if group_size > 0 else cols
    weight, zeros = codes(16, cols, rows, seed=seed), codes(16, cols // size, rows, seed=seed + 1)
    scales = (random(cols // size, rows, seed=seed).abs() / 16).half()

    def pack_awq(values):
        return pack(values.unflatten(1, (-1, 8))[:, :, order].flatten(1), 4, 1)

    stored = {"qweight": pack_awq(weight), "qzeros": pack_awq(zeros), "scales": scales}
    expected = (weight - zeros.repeat_interleave(size, 0)) * scales.float().repeat_interleave(size, 0)
    return stored, expected.T.contiguous()


def fp8(weight, block=None, scale="weight_scale_inv", dtype=torch.float32):
    """transformers 5.19, Fp8Quantize and Fp8Dequantize; ModelOpt 0.47, FP8QTensor: weight.float() * scale."""
    rows, cols = block or weight.shape
    scales = (blocks_of(weight, rows, cols).abs().amax(-1) / 448).to(dtype)
    wide = scales.float().repeat_interleave(rows, 0).repeat_interleave(cols, 1)[:weight.shape[0], :weight.shape[1]]
    stored = (weight / wide).clamp(-448, 448).to(FP8)
    return {"weight": stored, scale: scales if block else scales.reshape(())}, stored.float() * wide


def modelopt_nvfp4(weight):
    """ModelOpt 0.47, NVFP4QTensor.quantize() and dequantize() of torch/quantization/qtensor/nvfp4_tensor.py: code 8 is 0."""
    second = weight.abs().max() / (6 * 448)
    scales = (blocks_of(weight, 1, 16).abs().amax(-1) / 6 / second).to(FP8)
    wide = (scales.float() * second).repeat_interleave(16, 1)
    index = (weight / wide).abs().unsqueeze(-1).sub(FP4).abs().argmin(-1)
    index = index + 8 * (weight < 0)
    values = torch.cat([FP4, torch.where(FP4 == 0, 0, -FP4)])[index]
    packed = (index[:, 0::2] | index[:, 1::2] << 4).to(torch.uint8)
    return {"weight": packed, "weight_scale": scales, "weight_scale_2": second}, values * wide


def compressed_config(groups, format, ignore=(), **more):
    return {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
            "config_groups": groups, "ignore": list(ignore), **more}


def make_compressed(name, args, format, shape=(24, 64), activations=None, **more):
    scheme = {"input_activations": activations} if activations else {}
    stored, expected = compress(random(*shape), args, format, scheme=scheme, **more)
    group = {"targets": ["Linear"], "weights": args, "input_activations": activations}
    return name, compressed_config({"group_0": group}, format, ["lm_head"]), {"model.layers.0.mlp.up_proj": (stored, expected)}


def cases():
    group32 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    dynamic = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    fp8_token = {**dynamic, "type": "float"}
    block = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 24]}
    g_idx = (torch.arange(64) // 32)[torch.randperm(64, generator=torch.Generator().manual_seed(5))].int()
    int8 = {"num_bits": 8, "type": "int"}
    yield make_compressed("pack_int4_group", group32, "pack-quantized")
    yield make_compressed("pack_int4_zeros", {**group32, "symmetric": False}, "pack-quantized", (20, 96), scale_dtype=torch.float16)
    yield make_compressed("pack_int4_g_idx", {**group32, "symmetric": False, "actorder": "group"}, "pack-quantized",
                          g_idx=g_idx, scale_dtype=torch.float32)
    yield make_compressed("pack_int4_channel", {**group32, "strategy": "channel", "group_size": None}, "pack-quantized", (5, 37))
    yield make_compressed("pack_int8_zeros", {**group32, "num_bits": 8, "symmetric": False}, "pack-quantized", (21, 64))
    yield make_compressed("int8_channel", {**int8, "strategy": "channel"}, "int-quantized", activations=dynamic)
    yield make_compressed("int8_tensor_zeros", {**int8, "strategy": "tensor", "symmetric": False}, "naive-quantized",
                          (8, 24), scale_dtype=torch.float32)
    yield make_compressed("int8_group_zeros", {**group32, "num_bits": 8, "symmetric": False}, "naive-quantized")
    yield make_compressed("fp8_tensor", {**int8, "type": "float", "strategy": "tensor"}, "float-quantized", (8, 24),
                          activations=fp8_token, scale_dtype=torch.float32)
    yield make_compressed("fp8_channel", {**int8, "type": "float", "strategy": "channel"}, "float-quantized", activations=fp8_token)
    yield make_compressed("fp8_block", block, "float-quantized", (40, 64), activations=fp8_token)
    yield make_compressed("nvfp4", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
                          "nvfp4-pack-quantized")

    # Groups of several formats, found by name, expression and class; a plain head and a quantised one.
    exact = {"num_bits": 8, "type": "int", "strategy": "channel"}
    tensors = {"model.layers.0.mlp.up_proj": compress(random(8, 32, seed=1), group32, "pack-quantized"),
               "model.layers.0.mlp.down_proj": compress(random(8, 32, seed=2), exact, "int-quantized",
                                                        scheme={"input_activations": dynamic}),
               "model.layers.1.mlp.down_proj": compress(random(8, 64, seed=3), {**group32, "group_size": 64}, "pack-quantized"),
               "model.layers.1.mlp.up_proj": ({"weight": random(8, 32, seed=4)}, random(8, 32, seed=4))}
    config = compressed_config(
        {"any": {"targets": ["Linear"], "weights": group32},
         "some": {"targets": ["re:.*down_proj$"], "weights": {**group32, "group_size": 64}},
         "one": {"targets": ["model.layers.0.mlp.down_proj"], "weights": exact, "input_activations": dynamic,
                 "format": "int-quantized"}},
        "mixed-precision", ["lm_head", "re:.*layers\\.1\\.mlp\\.(up|gate)_proj"],
        kv_cache_scheme={"num_bits": 8, "type": "float", "strategy": "tensor"})
    yield "mixed", config, tensors

    one = "model.layers.0.mlp.up_proj"
    fine = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
    yield "fp8_fine_grained", {**fine, "weight_block_size": [16, 32]}, {one: fp8(random(40, 72), (16, 32))}
    every_code = torch.arange(256, dtype=torch.uint8).view(FP8).reshape(8, 32)
    every_code = every_code.float().nan_to_num(0).to(FP8)
    yield "fp8_per_tensor", {**fine, "activation_scheme": "static"}, {
        one: ({"weight": every_code, "weight_scale": torch.tensor(0.3)}, every_code.float() * torch.tensor(0.3))}
    producer = {"producer": {"name": "modelopt", "version": "0.33.0"}, "quant_method": "modelopt"}
    yield "modelopt_fp8", {**producer, "quant_algo": "FP8", "ignore": ["lm_head"]}, {
        one: fp8(random(8, 24), scale="weight_scale")}
    yield "modelopt_nvfp4", {**producer, "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]}, {
        one: modelopt_nvfp4(random(8, 48))}
    yield "awq", {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}, {
        one: awq(32), "lm_head": awq(32, seed=7, rows=8)}
    yield "awq_channel", {"quant_method": "awq", "bits": 4, "group_size": -1, "version": "GEMM"}, {one: awq(-1)}
    for name, bits, size, version, desc_act in [("gptq_v1", 4, 32, 1, False), ("gptq_v2_g_idx", 4, 32, 2, True),
                                                ("gptq_int8_v1", 8, 64, 1, False), ("gptq_channel", 4, -1, 2, False)]:
        yield name, {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": desc_act, "sym": False,
                     "checkpoint_format": "gptq_v2" if version == 2 else "gptq"}, {
            one: gptq(bits, size, version, desc_act, cols=64)}


def save(tensors, file):
    file.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file({name: value.contiguous() for name, value in tensors.items()}, file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent.parent / "tests" / "data" / "quantized")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    for name, config, modules in cases():
        stored, expected = {}, {}
        for module, (parts, decoded) in modules.items():
            stored.update({f"{module}.{part}": value for part, value in parts.items()})
            expected[f"{module}.weight"] = decoded.float()
            stored[f"{module}.input_scale"] = torch.ones(1)
        stored["model.layers.0.self_attn.k_scale"] = torch.ones(1, dtype=torch.bfloat16)
        save(stored, out / name / "model.safetensors")
        save(expected, out / name / "expected" / "model.safetensors")
        (out / name / "config.json").write_text(json.dumps({"quantization_config": config}, indent=1) + "\n")
        size = sum(file.stat().st_size for file in (out / name).rglob("*.*") if file.is_file())
        print(f"{name:18} {size:6} bytes  {', '.join(f'{n} {list(t.shape)}' for n, t in expected.items())}")


if __name__ == "__main__":
    main()
