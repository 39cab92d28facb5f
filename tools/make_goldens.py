#!/usr/bin/env python3
"""Makes tests/goldens: tiny random checkpoints of every family, with what transformers computes from them.

Usage: make_goldens.py [--out FOLDER] [NAME...]
       make_goldens.py [--out FOLDER] --adopt FOLDER

The second adds a checkpoint that was made elsewhere, under its folder's name, with the prompts that its golden.json lists.

Needs torch, transformers, safetensors and compressed-tensors. Each checkpoint's weights come from the seed recorded in its golden.json and are
exact in bfloat16, whatever dtype they are stored in. golden.json holds, for prompts of several lengths:
  logprobs           of each prompt token but the first, transformers in float32
  top                of each position, the most likely next tokens and their log-probabilities, float32
  bfloat16_logprobs  as logprobs, from transformers in bfloat16 on the same weights
  greedy, margins    the float32 greedy continuation, and how far each token was ahead of the second (logits)
Of a quantised checkpoint, transformers computes with the weights decoded to float32.
"""
import argparse
import json
import math
import pathlib
import shutil
import tempfile

import safetensors.torch
import torch
import transformers

import make_quantized_goldens as quantized

PROMPT_LENGTHS = [1, 5, 17, 48, 64, 100, 150]
NUM_GREEDY = 24
TOP = 5
DECISIVE = 0.1  # of a router's logits, which spread by 1.4

COMMON = dict(vocab_size=384, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=False,
              bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)


def longrope(half):
    return dict(rope_type="longrope", short_factor=[1 + 0.05 * i for i in range(half)], long_factor=[1 + 0.5 * i for i in range(half)])


# name -> (seed, config class, what differs from COMMON, rope parameters, how it is stored)
CHECKPOINTS = {
    "qwen3_tied": (11, "Qwen3", dict(num_attention_heads=6, head_dim=24, tie_word_embeddings=True),
                   dict(rope_theta=1e6), dict()),
    "qwen3_odd_vocab": (12, "Qwen3", dict(vocab_size=389, hidden_size=72, num_key_value_heads=1, head_dim=64,
                                          num_hidden_layers=2), dict(rope_theta=1e6), dict(layout=4)),
    "qwen3_yarn": (13, "Qwen3", dict(head_dim=32, num_key_value_heads=4, max_position_embeddings=256), dict(rope_theta=1e4, **YARN), dict()),
    "qwen2_tied": (14, "Qwen2", dict(tie_word_embeddings=True), dict(rope_theta=1e6), dict(layout=4)),
    "qwen2_window": (15, "Qwen2", dict(use_sliding_window=True, sliding_window=20, max_window_layers=1),
                     dict(rope_theta=1e4), dict(layout=4)),
    "llama2": (16, "Llama", dict(num_key_value_heads=4), dict(rope_theta=1e4), dict(layout=4, dtype="float16")),
    "llama3": (17, "Llama", dict(num_attention_heads=6, head_dim=16, tie_word_embeddings=True, hidden_size=96),
               dict(rope_theta=5e5, **LLAMA3), dict(layout=4)),
    "llama_biases": (18, "Llama", dict(num_attention_heads=8, head_dim=8, attention_bias=True, mlp_bias=True),
                     dict(rope_theta=1e4), dict(dtype="float32")),
    "llama_linear": (19, "Llama", dict(num_key_value_heads=1, hidden_act="gelu_pytorch_tanh"),
                     dict(rope_theta=1e4, rope_type="linear", factor=2.0), dict(layout=4)),
    "mistral_window": (20, "Mistral", dict(sliding_window=16), dict(rope_theta=1e4), dict(shards=3)),
    "gemma2": (23, "Gemma2", dict(hidden_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=256, intermediate_size=96,
                                  query_pre_attn_scalar=144, sliding_window=20, attn_logit_softcapping=4.0,
                                  final_logit_softcapping=8.0, tie_word_embeddings=True), dict(rope_theta=1e4), dict(layout=4)),
    "gemma3": (24, "Gemma3Text", dict(hidden_size=56, head_dim=32, intermediate_size=64, query_pre_attn_scalar=48, sliding_window=16,
                                      layer_types=["sliding_attention", "full_attention", "sliding_attention"], tie_word_embeddings=True),
               dict(full_attention=dict(rope_theta=1e6, rope_type="linear", factor=8.0),
                    sliding_attention=dict(rope_theta=1e4, rope_type="default")), dict()),
    "gemma3_multimodal": (25, "Gemma3Text", dict(hidden_size=40, head_dim=16, intermediate_size=64, sliding_window=12, num_hidden_layers=2,
                                                 sliding_window_pattern=2, tie_word_embeddings=True), dict(full_attention=dict(rope_theta=1e5, rope_type="default"),
                                                 sliding_attention=dict(rope_theta=1e3, rope_type="default")), dict(layout=4, nest=True)),
    "qwen3_moe": (30, "Qwen3Moe", dict(head_dim=24, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, norm_topk_prob=True,
                                       mlp_only_layers=[1]), dict(rope_theta=1e6), dict(layout=4)),
    "qwen2_moe": (31, "Qwen2Moe", dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=56,
                                       decoder_sparse_step=2), dict(rope_theta=1e4), dict()),
    "mixtral": (32, "Mixtral", dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=72, num_hidden_layers=2),
                dict(rope_theta=1e6), dict(layout=4, shards=2)),
    "olmoe": (34, "Olmoe", dict(num_experts=8, num_experts_per_tok=2, intermediate_size=32, num_key_value_heads=4, num_hidden_layers=2),
              dict(rope_theta=1e4), dict(layout=4)),
    "glm4_moe": (35, "Glm4Moe", dict(head_dim=32, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=2,
                                     n_group=4, topk_group=2, first_k_dense_replace=1, routed_scaling_factor=1.5, norm_topk_prob=True,
                                     use_qk_norm=True, attention_bias=True),
                 dict(rope_theta=1e4, partial_rotary_factor=0.5), dict()),
    "gpt_oss": (33, "GptOss", dict(num_local_experts=6, num_experts_per_tok=3, intermediate_size=64, head_dim=32, sliding_window=16,
                                   num_hidden_layers=2), dict(rope_theta=1.5e5, truncate=False, beta_fast=32.0, beta_slow=1.0, **YARN),
                dict(quantise="mxfp4")),
    "gpt_oss_plain": (38, "GptOss", dict(num_local_experts=6, num_experts_per_tok=3, intermediate_size=64, head_dim=32, sliding_window=16,
                                         num_hidden_layers=2), dict(rope_theta=1.5e5, **YARN), dict()),
    "phi3": (26, "Phi3", dict(num_attention_heads=2, num_key_value_heads=1, intermediate_size=96, sliding_window=40, max_position_embeddings=1600,
                              original_max_position_embeddings=400, pad_token_id=0),
             dict(rope_theta=1e4, partial_rotary_factor=0.75, **longrope(12)), dict(layout=4)),
    # Every text is longer than the original context, so that the long factors count.
    "phi3_long": (27, "Phi3", dict(num_hidden_layers=2, original_max_position_embeddings=1, pad_token_id=0),
                  dict(rope_theta=1e4, attention_factor=1.2, **longrope(8)), dict()),
    "granite": (28, "Granite", dict(embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.1, logits_scaling=1.5,
                                    tie_word_embeddings=True), dict(rope_theta=1e4), dict(layout=4)),
    "smollm3": (29, "SmolLM3", dict(num_hidden_layers=4, intermediate_size=96, tie_word_embeddings=True, pad_token_id=0), dict(rope_theta=2e6),
                dict(layout=4)),
    "olmo2": (30, "Olmo2", dict(num_attention_heads=6, num_key_value_heads=2, hidden_size=96, intermediate_size=96, pad_token_id=0),
              dict(rope_theta=5e5), dict(layout=4)),
    "olmo3": (32, "Olmo3", dict(num_hidden_layers=4, num_key_value_heads=4, intermediate_size=96, sliding_window=20, pad_token_id=0),
              dict(full_attention=dict(rope_theta=5e5, **YARN), sliding_attention=dict(rope_theta=5e5, rope_type="default")), dict(layout=4)),
    "glm4": (33, "Glm4", dict(head_dim=24, num_attention_heads=4, num_key_value_heads=1, intermediate_size=96, attention_bias=True, pad_token_id=0),
             dict(rope_theta=1e4, partial_rotary_factor=0.5), dict()),
    "qwen3_fp8": (22, "Qwen3", dict(vocab_size=128, head_dim=32, num_hidden_layers=1, tie_word_embeddings=True),
                  dict(rope_theta=1e6), dict(quantise="fp8")),
}


def random_weights(model, seed):
    """Weights whose logits spread by about 3, so that the most likely token is clearly ahead."""
    generator = torch.Generator().manual_seed(seed)
    weights, is_gemma = {}, model.config.model_type.startswith("gemma")  # whose norms multiply by 1 + weight
    for name, tensor in sorted(model.state_dict().items()):
        noise = torch.randn(tensor.shape, generator=generator)
        width = tensor.shape[-1]
        if name.endswith("norm.weight"):
            value = (1 - is_gemma) + 0.2 * noise
            if is_gemma and name == "model.norm.weight":  # its embeddings are scaled and tied
                value += 5
        elif name.endswith(".bias"):
            value = 0.3 * noise
        elif name in ("lm_head.weight", "model.embed_tokens.weight"):
            value = (0.5 if is_gemma else 3) / math.sqrt(tensor.shape[1]) * noise
        else:
            value = 1.4 / math.sqrt(width) * noise
        value = value.to(torch.bfloat16).float()
        weights[name] = torch.where(value.half().float() == value, value, 0)  # exact in float16, too
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    return split_experts(weights, model.config.model_type)


def split_experts(weights, model_type):
    """Under the names of published checkpoints, which have a matrix for each projection of each expert."""
    names = ("w1", "w3", "w2") if model_type == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    result = {}
    if model_type == "gpt_oss":
        return weights
    for name, value in weights.items():
        if model_type == "mixtral":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if name.endswith(".experts.gate_up_proj"):
            halves = value.chunk(2, dim=1)
            for part, half in zip(names, halves):
                result.update({f"{name.removesuffix('gate_up_proj')}{i}.{part}.weight": m.clone() for i, m in enumerate(half)})
        elif name.endswith(".experts.down_proj"):
            result.update({f"{name.removesuffix('down_proj')}{i}.{names[2]}.weight": m.clone() for i, m in enumerate(value)})
        else:
            result[name] = value
    return result


def quantise_mxfp4(weights):
    """gpt-oss's experts; its matrices of experts are stored transposed where they are plain."""
    values = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
    stored, decoded = {}, {}
    for name, value in weights.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name], decoded[name] = value.bfloat16(), value
            continue
        blocks = value.transpose(1, 2).unflatten(-1, (-1, 32))
        exponents = blocks.abs().amax(-1).log2().floor() - 2
        codes = (blocks / exponents.exp2()[..., None])[..., None].sub(values).abs().argmin(-1)
        stored[name + "_blocks"] = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        stored[name + "_scales"] = (exponents + 127).to(torch.uint8)
        decoded[name] = (values[codes] * exponents.exp2()[..., None]).flatten(-2).transpose(1, 2).contiguous()
    return {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                "model.embed_tokens", "lm_head"]}, stored, decoded


def quantise(weights, how):
    """(quantization_config, tensors as they are stored, weights as they are decoded)"""
    if how == "mxfp4":
        return quantise_mxfp4(weights)
    int4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    head = {"num_bits": 8, "type": "int", "strategy": "channel"}
    stored, decoded = {}, {}
    for name, value in weights.items():
        if value.dim() == 1 or name == "model.embed_tokens.weight":
            stored[name], decoded[name] = value.bfloat16(), value
            continue
        if how == "fp8":
            parts, decoded[name] = quantized.fp8(value, (128, 128))
        else:
            args = head if name == "lm_head.weight" else int4
            parts, decoded[name] = quantized.compress(value, args, "pack-quantized")
        stored.update({name.removesuffix("weight") + part: tensor for part, tensor in parts.items()})
    groups = {"layers": {"targets": ["Linear"], "weights": int4}, "head": {"targets": ["re:.*lm_head"], "weights": head}}
    config = quantized.compressed_config(groups, "pack-quantized") if how == "int4" else {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head"]}
    return config, stored, decoded


def write_checkpoint(folder, config, weights, layout=5, dtype="bfloat16", shards=1, quantization=None, nest=False):
    fields = config.to_diff_dict()
    fields["architectures"] = [type(config).__name__.replace("Text", "").replace("Config", "ForCausalLM")]
    fields["dtype"] = dtype
    if layout == 4:
        rope = dict(fields.pop("rope_parameters"))
        if "sliding_attention" in rope:
            if "_sliding_window_pattern" in fields:  # Gemma's
                fields["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
                fields["sliding_window_pattern"] = fields.pop("_sliding_window_pattern")
            rope = rope["full_attention"]
        fields["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            fields["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        fields["rope_scaling"] = None if rope["rope_type"] == "default" else rope
        fields["torch_dtype"] = fields.pop("dtype")
        fields.pop("layer_types", None)  # those of a family's default
    if quantization:
        fields["quantization_config"] = quantization
    if nest:
        fields = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": fields, "vision_config": {}}
        weights = {"language_model." + name: value for name, value in weights.items()}
        weights["vision_tower.probe"] = torch.ones(1)
    (folder / "config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
    stored = weights if quantization else {name: value.to(getattr(torch, dtype)) for name, value in weights.items()}
    stored = {name: value.contiguous() for name, value in stored.items()}
    if shards == 1:
        safetensors.torch.save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        names = sorted(stored)[i::shards]
        safetensors.torch.save_file({n: stored[n] for n in names}, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in names})
    index = {"metadata": {}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def load(folder, dtype, family=""):
    needs_eager = family in ("Gemma2", "GptOss")  # the default leaves out soft caps and sinks
    attention = {"attn_implementation": "eager"} if needs_eager else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **attention)
    return model.eval()


@torch.no_grad()
def prompt_logprobs(model, ids):
    """[length, vocab] log-probabilities of what follows each position."""
    return model(torch.tensor([ids])).logits[0].float().log_softmax(-1)


@torch.no_grad()
def greedy(model, ids):
    """Margins are 0 from where a router hesitates on: another dtype may go to another expert there."""
    tokens, margins, hesitates = [], [], False
    for _ in range(NUM_GREEDY):
        hesitates = hesitates or routing_margin(model, ids + tokens) < DECISIVE / 2
        values, best = model(torch.tensor([ids + tokens])).logits[0, -1].topk(2)
        tokens.append(best[0].item())
        margins.append(0.0 if hesitates else (values[0] - values[1]).item())
    return tokens, margins


@torch.no_grad()
def routing_margin(model, ids):
    """How far the last expert that any router chooses at the last position is ahead of the first one that it does not."""
    margins = [math.inf]

    def watch(router, _, output):
        choice = output[0][-1]
        groups = getattr(router, "num_group", 1)
        if hasattr(router, "e_score_correction_bias"):
            choice = 4 * (choice.sigmoid() + router.e_score_correction_bias)  # a sigmoid's slope is up to 1/4
        if groups > 1:
            parts = choice.view(groups, -1)
            sums = parts.topk(2)[0].sum(-1)
            values = sums.topk(router.topk_group + 1)[0]
            margins.append((values[-2] - values[-1]).item())
            choice = parts[sums.topk(router.topk_group)[1]].flatten()
        if len(choice) > router.top_k:
            values = choice.topk(router.top_k + 1)[0]
            margins.append((values[-2] - values[-1]).item())

    hooks = [m.register_forward_hook(watch) for m in model.modules() if type(m).__name__.lower().endswith("topkrouter")]
    if hooks:
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return min(margins)


def random_prompt(model, length, generator):
    """Of a mixture of experts, tokens at which no router hesitates: what is compared is arithmetic, not luck."""
    ids = torch.randint(model.config.vocab_size, (length,), generator=generator).tolist()
    for i in range(length):
        while routing_margin(model, ids[:i + 1]) < DECISIVE:
            ids[i] = torch.randint(model.config.vocab_size, (), generator=generator).item()
    return ids


def short(values, digits=6):
    return [round(v, digits) for v in values]


def make_case(exact, rounded, ids, errors):
    """One of golden.json's cases, and the errors of bfloat16 appended to `errors`."""
    logprobs = prompt_logprobs(exact, ids)
    rough = prompt_logprobs(rounded, ids)
    chosen = [logprobs[i, ids[i + 1]].item() for i in range(len(ids) - 1)]
    rough_chosen = [rough[i, ids[i + 1]].item() for i in range(len(ids) - 1)]
    top = logprobs.topk(TOP)
    tokens, margins = greedy(exact, ids)
    errors += [abs(a - b) for a, b in zip(chosen, rough_chosen)]
    return {
        "ids": ids, "logprobs": short(chosen), "bfloat16_logprobs": short(rough_chosen),
        "top": [[[t, round(v, 6)] for t, v in zip(ts, vs)]
                for ts, vs in zip(top.indices.tolist(), top.values.tolist())],
        "greedy": tokens, "margins": short(margins, 4),
    }


def write_golden(path, golden, cases):
    """One line a case."""
    lines = json.dumps({**golden, "cases": []})[:-2]
    lines += "\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]}\n"
    path.write_text(lines)


def make(name, out):
    seed, family, changes, rope, storage = CHECKPOINTS[name]
    config = getattr(transformers, family + "Config")(**{**COMMON, **changes}, rope_parameters=dict(rope))
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    blank = transformers.AutoModelForCausalLM.from_config(config)
    weights, how, nest = random_weights(blank, seed), storage.get("quantise"), storage.get("nest")
    with tempfile.TemporaryDirectory() as plain:
        if how:
            quantization, stored, weights = quantise(weights, how)
            write_checkpoint(folder, config, stored, quantization=quantization)
            write_checkpoint(pathlib.Path(plain), config, weights, dtype="float32")
        else:
            write_checkpoint(folder, config, weights, **storage)
            if nest:
                write_checkpoint(pathlib.Path(plain), config, weights)
        source = plain if how or nest else folder
        exact, rounded = load(source, torch.float32, family), load(source, torch.bfloat16, family)
    generator = torch.Generator().manual_seed(1000 + seed)
    cases, errors = [], []
    for length in PROMPT_LENGTHS:
        ids = random_prompt(exact, length, generator)
        cases.append(make_case(exact, rounded, ids, errors))
        spread = exact(torch.tensor([ids])).logits.std().item()
    golden = {"checkpoint": name, "seed": seed, "torch": torch.__version__, "transformers": transformers.__version__}
    write_golden(folder / "golden.json", golden, cases)

    margins = [m for case in cases for m in case["margins"]]
    size = sum(f.stat().st_size for f in folder.iterdir())
    rms = math.sqrt(sum(e * e for e in errors) / len(errors))
    print(f"{name:16} {size:7} bytes  logit spread {spread:.2f}  margins above 0.25: "
          f"{sum(m > 0.25 for m in margins)}/{len(margins)}  bfloat16 error rms {rms:.4f} max {max(errors):.4f}")
    assert size < 1_000_000


def adopt(source, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in ("config.json", "model.safetensors"):
        shutil.copy(source / part, folder)
    family = getattr(transformers, json.loads((source / "config.json").read_text())["architectures"][0])
    exact, rounded = (family.from_pretrained(source, dtype=dtype).eval() for dtype in (torch.float32, torch.bfloat16))
    cases = [make_case(exact, rounded, case["prompt"], []) for case in json.loads((source / "golden.json").read_text())]
    golden = {"checkpoint": folder.name, "torch": torch.__version__, "transformers": transformers.__version__}
    write_golden(folder / "golden.json", golden, cases)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "tests" / "goldens")
    parser.add_argument("--adopt", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("names", nargs="*", choices=[[], *CHECKPOINTS], metavar="NAME")
    arguments = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    if arguments.adopt:
        return adopt(arguments.adopt, arguments.out / arguments.adopt.name)
    for name in arguments.names or CHECKPOINTS:
        make(name, arguments.out)


if __name__ == "__main__":
    main()
