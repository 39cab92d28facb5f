"""What transformers decodes a folder of `nanovllm quantize` to must be what its codes and scales stand for, bit for bit.

usage: check_rounded_folder.py BINARY MODEL tests/data/rounded_folders.json      needs torch, transformers and compressed-tensors

Quantises MODEL to each format, compares, and writes the digests of the folders that passed: tests/quantize_test.py holds later ones to
them without these packages. compressed-tensors 0.20.0 can't open zero points of packed integers with transformers 5.24; 0.17.0 can.
"""
import hashlib
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

FORMATS = ("int8", "int4", "fp8")


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


def check(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.hf_quantizer.compressor.decompress_model(model)
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
    if count != sum(name.endswith(".weight_scale") for name in tensors):
        sys.exit(f"{folder}: only {count} matrices were found in the model")
    print(f"{folder}: {count} matrices are decoded to the same bits")


def main():
    binary, model, out = sys.argv[1:]
    record = {package: importlib.metadata.version(package) for package in ("compressed-tensors", "transformers", "torch")}
    for form in FORMATS:
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place) / form
            subprocess.run([binary, "quantize", model, folder, "--format", form, "-q"], check=True)
            check(folder)
            record[form] = hashlib.sha256(b"".join((folder / name).read_bytes() for name in ("config.json", "model.safetensors"))).hexdigest()
    pathlib.Path(out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
