"""What transformers decodes a folder of `nanovllm quantize` to must be what its codes and scales stand for, bit for bit.

usage: check_rounded_folder.py FOLDER      needs torch, transformers, compressed-tensors and safetensors
"""
import pathlib
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig


def codes_of(words, count):
    """Those of 4 bits, eight in a word."""
    return torch.stack([words.to(torch.int64) >> 4 * i & 15 for i in range(8)], -1).reshape(words.shape[0], -1)[:, :count].float()


def expected(tensors, name):
    """The float32 numbers of a module; None where it is not quantised."""
    scale = tensors.get(f"{name}.weight_scale")
    if scale is None:
        return None
    if f"{name}.weight_packed" in tensors:
        rows, cols = tensors[f"{name}.weight_shape"].tolist()
        zeros = codes_of(tensors[f"{name}.weight_zero_point"].T, rows).T
        values = codes_of(tensors[f"{name}.weight_packed"], cols) - zeros.repeat_interleave(32, 1)
    else:
        values = tensors[f"{name}.weight"].float()
    return values * scale.float().repeat_interleave(values.shape[1] // scale.shape[1], 1)


def main():
    folder = pathlib.Path(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=CompressedTensorsConfig(run_compressed=False), dtype="auto")
    tensors = load_file(folder / "model.safetensors")
    count = 0
    for name, module in model.named_modules():
        numbers = expected(tensors, name)
        if numbers is None:
            continue
        decoded = module.weight.data
        if not torch.equal(decoded.view(torch.uint8), numbers.to(decoded.dtype).view(torch.uint8)):
            sys.exit(f"{folder}: {name} is decoded to other numbers")
        count += 1
    if count == 0:
        sys.exit(f"{folder}: no module is quantised")
    print(f"{folder}: {count} matrices are decoded to the same bits")


if __name__ == "__main__":
    main()
