#!/usr/bin/env python3
"""Makes tests/data/gguf_*: tiny models as GGUF files, with what transformers computes from their numbers.

Usage: make_gguf_goldens.py [--out FOLDER] [NAME...]
       make_gguf_goldens.py --convert MODEL_FOLDER FILE.gguf TYPE PRE_TOKENIZER

--convert needs numpy and gguf (0.19.0 made the files), the rest also what make_goldens.py needs.
gguf-py writes the files, with keys, names and rows as llama.cpp's conversion/base.py and the file of the family beside it
have them: nothing of ours decides what such a file looks like. NAME.json holds what golden.json of tests/goldens does, from
the numbers as gguf-py decodes them, and "texts" with their token ids. Like llama.cpp's, files of Llama and Qwen have no
sliding window.
"""
import argparse
import json
import math
import pathlib
import re
import tempfile

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

ARCHITECTURES = {"glm4": gguf.MODEL_ARCH.GLM4, "llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA,
                 "phi3": gguf.MODEL_ARCH.PHI3, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3,
                 "mixtral": gguf.MODEL_ARCH.LLAMA, "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
                 "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE, "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
                 "gemma2": gguf.MODEL_ARCH.GEMMA2, "gemma3_text": gguf.MODEL_ARCH.GEMMA3, "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE,
                 "granite": gguf.MODEL_ARCH.GRANITE, "olmo2": gguf.MODEL_ARCH.OLMO2, "olmo3": gguf.MODEL_ARCH.OLMO2,
                 "olmoe": gguf.MODEL_ARCH.OLMOE, "smollm3": gguf.MODEL_ARCH.SMOLLM3}
LLAMAS = ("llama", "granite", "smollm3")  # whose rows of q and k are for a rotation of neighbours


def read_safetensors(folder):
    """{name: float32 array} of all files of a folder."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:begin]).items():
            if name == "__metadata__":
                continue
            raw = data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]]
            if entry["dtype"] == "BF16":
                array = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                array = np.frombuffer(raw, {"F16": np.float16, "F32": np.float32}[entry["dtype"]]).astype(np.float32)
            tensors[name] = array.reshape(entry["shape"])
    return tensors


def encoded(numbers, wanted):
    """Type and data: the wanted type where gguf-py can write it and rows are whole blocks, else Q8_0, else BF16."""
    for kind in (wanted, Type.Q8_0, Type.BF16):
        try:
            return kind, gguf.quants.quantize(numbers, kind)
        except (NotImplementedError, gguf.quants.QuantError):
            continue
    raise ValueError(f"{wanted.name}: no type can hold shape {numbers.shape}")


def interleaved(rows, num_heads):
    """llama.cpp rotates neighbours, Hugging Face the halves of a head."""
    return rows.reshape(num_heads, 2, len(rows) // num_heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def rope_of(config):
    """theta, the scaling or {}, and how much of a head turns, of either layout of config.json."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope = dict(rope.get("full_attention", rope))
    theta = rope.pop("rope_theta", config.get("rope_theta", 1e4))
    share = rope.pop("partial_rotary_factor", config.get("partial_rotary_factor", 1))
    return theta, rope if rope.get("rope_type", "default") != "default" else {}, int(share * head_dim_of(config))


def llama3_divisors(theta, head_dim, rope):
    divisors = []
    for i in range(0, head_dim, 2):
        length = 2 * math.pi * theta ** (i / head_dim)  # positions a turn
        turns = rope["original_max_position_embeddings"] / length
        blend = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        blend = min(max(blend, 0), 1)
        divisors.append(1 / ((1 - blend) / rope["factor"] + blend))
    return np.array(divisors, np.float32)


def add_parameters(writer, config):
    theta, rope, rotary_dim = rope_of(config)
    is_gemma = writer.arch.startswith("gemma")
    if config.get("hidden_act", "silu") != "silu" and not is_gemma:
        raise ValueError(f"GGUF has no key for the activation {config['hidden_act']}")
    extra = config.get("num_nextn_predict_layers", 0)
    writer.add_block_count(config["num_hidden_layers"] + extra)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if writer.arch != "gemma2":
        writer.add_rope_freq_base(theta)
    if is_gemma or config["model_type"] == "olmo3":
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "olmo3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if writer.arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if writer.arch == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if writer.arch == "glm4moe":
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_nextn_predict_layers(extra)
    num_experts = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if writer.arch not in ("llama", "olmoe"):
            writer.add_expert_feed_forward_length(config.get("moe_intermediate_size", config["intermediate_size"]))
        if config.get("shared_expert_intermediate_size"):
            writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if writer.arch == "gpt-oss":
        writer.add_sliding_window(config["sliding_window"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if writer.arch in LLAMAS:
        writer.add_vocab_size(config["vocab_size"])
    if writer.arch in (*LLAMAS, "glm4", "glm4moe", "phi3"):
        writer.add_rope_dimension_count(rotary_dim)
    if writer.arch == "phi3":
        writer.add_sliding_window(config.get("sliding_window") or 0)
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    if rope.get("rope_type") == "longrope":
        scale = config["max_position_embeddings"] / config["original_max_position_embeddings"]
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(config["original_max_position_embeddings"])))
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key, add in (("attention_factor", writer.add_rope_scaling_yarn_attn_factor),
                         ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
                         ("beta_slow", writer.add_rope_scaling_yarn_beta_slow)):
            if rope.get(key) is not None:
                add(rope[key])


def head_dim_of(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def tokenizer_metadata(tokenizer_json, tokenizer_config, pre):
    """{key: value} of a byte-level BPE tokenizer.json, whose pre-tokenizer llama.cpp calls `pre`."""
    vocab = dict(tokenizer_json["model"]["vocab"])
    types = dict.fromkeys(vocab.values(), gguf.TokenType.NORMAL)
    for token in tokenizer_json["added_tokens"]:
        vocab[token["content"]] = token["id"]
        is_control = token["special"] or (token["content"].startswith("<|") and token["content"].endswith("|>"))
        types[token["id"]] = gguf.TokenType.CONTROL if is_control else gguf.TokenType.USER_DEFINED
    size = max(vocab.values()) + 1
    names = {id: name for name, id in vocab.items()}
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [names.get(id, f"[PAD{id}]") for id in range(size)],
        "tokenizer.ggml.token_type": [int(types.get(id, gguf.TokenType.UNUSED)) for id in range(size)],
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge)
                                  for merge in tokenizer_json["model"]["merges"]],
    }
    for key in ("bos", "eos", "pad"):
        token = tokenizer_config.get(f"{key}_token")
        token = token["content"] if isinstance(token, dict) else token
        if token is not None:
            metadata[f"tokenizer.ggml.{ {'pad': 'padding'}.get(key, key) }_token_id"] = vocab[token]
    for key in ("add_bos_token", "add_eos_token"):
        if key in tokenizer_config:
            metadata[f"tokenizer.ggml.{key}"] = tokenizer_config[key]
    if tokenizer_config.get("chat_template"):
        metadata["tokenizer.chat_template"] = tokenizer_config["chat_template"]
    return metadata


def add_metadata(writer, metadata):
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)


def merged(tensors):
    """Gate and up of all experts in one, as --fuse-gate-up-exps leaves them: {name: (type, data)}."""
    result = {}
    for name, (kind, data) in tensors.items():
        if "ffn_gate_exps" in name:
            result[name.replace("gate", "gate_up")] = kind, np.concatenate([data, tensors[name.replace("gate", "up")][1]], 1)
        elif "ffn_up_exps" not in name:
            result[name] = kind, data
    return result


def stacked(tensors):
    """The experts of a layer as one tensor a projection, as llama.cpp has them: {its name: tensor}."""
    result, parts = {}, {}
    for name, tensor in tensors.items():
        expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)(\.weight)", name)
        fused = re.fullmatch(r"(.*\.experts)\.gate_up_proj(_bias)?", name)
        if expert:
            parts.setdefault(f"{expert[1]}.{expert[3]}{expert[4]}", []).append((int(expert[2]), tensor))
        elif fused:  # gpt-oss's, whose columns are gate, up, gate, up, ...
            for i, part in enumerate(("gate_proj", "up_proj")):
                half = tensor[..., i::2]
                result[f"{fused[1]}.{part}.{'bias' if fused[2] else 'weight'}"] = half if fused[2] else half.swapaxes(1, 2)
        elif name.endswith(".experts.down_proj"):
            result[name + ".weight"] = tensor.swapaxes(1, 2)
        else:
            result[re.sub(r"(experts\.down_proj)_bias$", r"\1.bias", name)] = tensor
    for name, experts in parts.items():
        result[name] = np.stack([tensor for _, tensor in sorted(experts, key=lambda e: e[0])])
    return result


def unstacked(numbers, names):
    """What stacked() made of tensors of these names, under them."""
    result = {}
    for name in names:
        expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+\.weight)", name)
        fused = re.fullmatch(r"(.*\.experts)\.gate_up_proj(_bias)?", name)
        if expert:
            result[name] = numbers[f"{expert[1]}.{expert[3]}"][int(expert[2])]
        elif fused:
            kind = "bias" if fused[2] else "weight"
            halves = np.stack([numbers[f"{fused[1]}.{part}.{kind}"] for part in ("gate_proj", "up_proj")], -1)
            result[name] = halves.reshape(len(halves), -1) if fused[2] else (
                halves.swapaxes(1, 2).reshape(len(halves), halves.shape[2], -1))
        elif name.endswith(".experts.down_proj"):
            result[name] = numbers[name + ".weight"].swapaxes(1, 2)
        else:
            result[name] = numbers[re.sub(r"(experts\.down_proj)_bias$", r"\1.bias", name)]
    return result


def write_gguf(folder, out, types, pre, is_merged=False):
    """A Hugging Face folder as a GGUF file. types: {tensor name without .weight: Type}, "" for all others. Returns
    {Hugging Face's name: the numbers that the file holds}."""
    config = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_name(folder.name)
    add_parameters(writer, config)
    if (folder / "tokenizer.json").exists():
        add_metadata(writer, tokenizer_metadata(json.loads((folder / "tokenizer.json").read_text()),
                                                json.loads((folder / "tokenizer_config.json").read_text()), pre))
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    numbers, written = {}, {}
    tensors = read_safetensors(folder)
    for name, tensor in stacked(tensors).items():
        known = name.replace("model.", "").replace("block_sparse_moe.experts", "feed_forward.experts") if ".experts.w" in name else name
        if known.endswith(".sinks"):
            known += ".weight"
        known = known.replace("e_score_correction_bias", "e_score_correction.bias")
        new_name = names.get_name(known, (".weight", ".bias"))
        part = name.split(".")[-2]
        kind, data = Type.F32, tensor
        if part == "shared_expert_gate":
            data, numbers[name] = tensor[0], tensor
        elif new_name.endswith(".bias") or "ffn_gate_inp" in new_name:
            numbers[name] = tensor
        elif tensor.ndim >= 2:
            kind, data = encoded(tensor, types.get(new_name.removesuffix(".weight"), types[""]))
            numbers[name] = gguf.quants.dequantize(data, kind)
        else:
            data, numbers[name] = tensor + writer.arch.startswith("gemma"), tensor
        if writer.arch in LLAMAS and part in heads:
            data = interleaved(data, heads[part])
        written[new_name] = kind, np.ascontiguousarray(data)
    for name, (kind, data) in (merged(written) if is_merged else written).items():
        writer.add_tensor(name, data, raw_dtype=kind)
    for i in range(config.get("num_nextn_predict_layers", 0)):  # of which no token comes here
        writer.add_tensor(f"blk.{config['num_hidden_layers'] + i}.nextn.enorm.weight", np.ones(config["hidden_size"], np.float32))
    theta, rope, rotary_dim = rope_of(config)
    for kind in ("long", "short") if rope.get("rope_type") == "longrope" else ():
        writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], np.float32))
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(theta, head_dim_of(config), rope))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return unstacked(numbers, tensors)


MERGED = ("gguf_qwen3moe",)
GEMMA3 = dict(full_attention=dict(rope_theta=1e6, rope_type="linear", factor=8.0), sliding_attention=dict(rope_theta=1e4, rope_type="default"))
DEMO = pathlib.Path(__file__).parent.parent / "models" / "demo"
NUM_MERGES = 60
DIGITS = {"qwen2": r"\p{N}", "llama-bpe": r"\p{N}{1,3}"}
TEXTS = ["", "Once upon a time there was a cat.", "It's 12345 o'clock,  DON'T be late!\n\n\tok\n",
         "caf\u00e9 cafe\u0301 \u732b \U0001f63a", "<|im_start|>user\nhi<|im_end|>\n", " leading and trailing  "]
LENGTHS = [1, 17, 100]  # of prompts, tokens

# name -> (seed, config class, what differs from make_goldens.COMMON, rope parameters, pre-tokenizer, types of tensors)
MODELS = {
    "gguf_llama": (31, "Llama", dict(tie_word_embeddings=True), "LLAMA3", "llama-bpe",
                   {"": Type.Q8_0, "blk.0.attn_q": Type.Q4_0, "blk.0.attn_k": Type.Q5_1, "blk.0.attn_v": Type.Q5_0,
                    "blk.0.attn_output": Type.Q4_1, "blk.0.ffn_gate": Type.Q4_1, "blk.0.ffn_up": Type.MXFP4,
                    "blk.0.ffn_down": Type.Q5_0, "blk.1.attn_q": Type.F16, "blk.1.attn_k": Type.BF16,
                    "blk.1.attn_v": Type.F32, "blk.1.ffn_gate": Type.Q4_0, "blk.1.ffn_up": Type.Q4_0}),
    "gguf_mixtral": (32, "Mixtral", dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=64), None, "llama-bpe",
                     {"": Type.Q8_0, "blk.0.ffn_gate_exps": Type.Q4_0, "blk.1.ffn_down_exps": Type.BF16}),
    "gguf_qwen2moe": (33, "Qwen2Moe", dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32,
                                           shared_expert_intermediate_size=96), None, "qwen2", {"": Type.Q8_0}),
    "gguf_gpt_oss": (34, "GptOss", dict(num_local_experts=6, num_experts_per_tok=3, intermediate_size=64, head_dim=32, sliding_window=16),
                     "YARN", "qwen2", {"": Type.Q8_0, **{f"blk.{i}.ffn_{part}_exps": Type.MXFP4 for i in range(2) for part in ("gate", "up", "down")}}),
    "gguf_qwen3moe": (36, "Qwen3Moe", dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True), None,
                      "qwen2", {"": Type.Q8_0, "blk.1.ffn_down_exps": Type.Q5_0}),
    "gguf_olmoe": (37, "Olmoe", dict(num_experts=6, num_experts_per_tok=2, intermediate_size=32, rms_norm_eps=1e-5), None, "qwen2",
                   {"": Type.Q8_0, "blk.0.ffn_up_exps": Type.Q4_1}),
    "gguf_glm4moe": (45, "Glm4Moe", dict(head_dim=16, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=2,
                                         n_group=1, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=1.5, norm_topk_prob=True,
                                         use_qk_norm=True, attention_bias=True), dict(partial_rotary_factor=0.5), "qwen2",
                     {"": Type.Q8_0, "blk.1.ffn_up_shexp": Type.Q5_1}),
    "gguf_gemma2": (39, "Gemma2", dict(head_dim=32, query_pre_attn_scalar=32, sliding_window=20, attn_logit_softcapping=4.0,
                                       final_logit_softcapping=8.0, tie_word_embeddings=True), None, "qwen2", {"": Type.Q8_0}),
    "gguf_gemma3": (40, "Gemma3Text", dict(num_hidden_layers=6, head_dim=16, query_pre_attn_scalar=16, intermediate_size=64, sliding_window=16,
                                           tie_word_embeddings=True), None, "qwen2", {"": Type.Q8_0}),
    "gguf_granite": (41, "Granite", dict(embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.1, logits_scaling=1.5,
                                         tie_word_embeddings=True), None, "qwen2", {"": Type.Q8_0}),
    "gguf_smollm3": (46, "SmolLM3", dict(num_hidden_layers=4, tie_word_embeddings=True, pad_token_id=0), None, "llama-bpe", {"": Type.Q8_0}),
    "gguf_olmo2": (43, "Olmo2", dict(num_attention_heads=8, num_key_value_heads=2, pad_token_id=0), None, "qwen2", {"": Type.Q8_0}),
    "gguf_olmo3": (44, "Olmo3", dict(num_hidden_layers=4, num_key_value_heads=4, sliding_window=20, pad_token_id=0), None, "qwen2",
                   {"": Type.Q8_0}),
    "gguf_glm4": (34, "Glm4", dict(head_dim=24, attention_bias=True, pad_token_id=0), dict(partial_rotary_factor=0.5), "qwen2",
                  {"": Type.Q8_0, "blk.0.ffn_up": Type.Q5_1, "blk.1.attn_q": Type.Q4_1, "blk.1.attn_k": Type.F16}),
    "gguf_phi3": (35, "Phi3", dict(num_attention_heads=2, num_key_value_heads=1, sliding_window=40, max_position_embeddings=1600,
                                   original_max_position_embeddings=400, pad_token_id=0, tie_word_embeddings=True),
                  dict(rope_type="longrope", partial_rotary_factor=0.75, short_factor=[1 + 0.125 * i for i in range(12)],
                       long_factor=[1 + 0.5 * i for i in range(12)]), "llama-bpe",
                  {"": Type.Q8_0, "blk.0.attn_qkv": Type.Q5_0, "blk.1.ffn_up": Type.Q4_1, "blk.1.attn_qkv": Type.BF16}),
}


def tiny_tokenizer(pre):
    """tokenizer.json and tokenizer_config.json: the demo model's, with its first merges only."""
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    config = json.loads((DEMO / "tokenizer_config.json").read_text())
    model = tokenizer["model"]
    model["merges"] = model["merges"][:NUM_MERGES]
    model["vocab"] = {token: id for token, id in model["vocab"].items() if id < 256 + NUM_MERGES}
    for i, token in enumerate(tokenizer["added_tokens"]):
        token["id"] = 256 + NUM_MERGES + i
    split = tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    split["Regex"] = split["Regex"].replace(r"\p{N}|", DIGITS[pre] + "|")
    if pre == "llama-bpe":  # begins with a token, leaves characters as they are
        begin = tokenizer["added_tokens"][0]
        config.update(bos_token=begin["content"], add_bos_token=True)
        model["ignore_merges"] = True
        tokenizer["normalizer"] = None
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": begin["content"], "type_id": 0}},
                                                     {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {begin["content"]: {"id": begin["content"], "ids": [begin["id"]],
                                                  "tokens": [begin["content"]]}}}
    return tokenizer, config


def make(name, out):
    import make_goldens
    import tokenizers
    import torch
    import transformers
    seed, family, changes, scaling, pre, types = MODELS[name]
    tokenizer, tokenizer_config = tiny_tokenizer(pre)
    size = 256 + NUM_MERGES + len(tokenizer["added_tokens"])
    shape = dict(vocab_size=size, num_hidden_layers=2, intermediate_size=96, max_position_embeddings=256,
                 bos_token_id=None, eos_token_id=size - 1)
    plain = dict(rope_type="default")
    if family == "Gemma3Text":
        rope = GEMMA3
    elif family == "Olmo3":
        rope = dict(full_attention=dict(rope_theta=1e4, **make_goldens.YARN), sliding_attention=dict(rope_theta=1e4, **plain))
    else:
        rope = dict(rope_theta=1e4, **(getattr(make_goldens, scaling) if isinstance(scaling, str) else scaling or plain))
    if family == "GptOss":
        rope["truncate"] = False  # of which its files say nothing
    config = getattr(transformers, family + "Config")(**{**make_goldens.COMMON, **shape, **changes}, rope_parameters=rope)
    blank = transformers.AutoModelForCausalLM.from_config(config)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder) / name
        folder.mkdir()
        make_goldens.write_checkpoint(folder, config, make_goldens.random_weights(blank, seed))
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
        numbers = write_gguf(folder, out / f"{name}.gguf", types, pre, name in MERGED)
        make_goldens.write_checkpoint(folder, config, {n: torch.tensor(v) for n, v in numbers.items()}, dtype="float32")
        exact, rounded = (make_goldens.load(folder, dtype, family) for dtype in (torch.float32, torch.bfloat16))
    generator = torch.Generator().manual_seed(1000 + seed)
    cases = [make_goldens.make_case(exact, rounded, make_goldens.random_prompt(exact, n, generator), []) for n in LENGTHS]
    encode = tokenizers.Tokenizer.from_str(json.dumps(tokenizer)).encode
    golden = {"checkpoint": name, "seed": seed, "torch": torch.__version__, "transformers": transformers.__version__,
              "texts": [{"text": text, "ids": encode(text).ids} for text in TEXTS]}
    make_goldens.write_golden(out / f"{name}.json", golden, cases)
    margins = [m for case in cases for m in case["margins"]]
    sizes = " + ".join(str((out / (name + suffix)).stat().st_size) for suffix in (".gguf", ".json"))
    print(f"{name}: {sizes} bytes, margins above 0.25: {sum(m > 0.25 for m in margins)}/{len(margins)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "tests" / "data")
    parser.add_argument("--convert", nargs=4, metavar=("MODEL_FOLDER", "FILE", "TYPE", "PRE_TOKENIZER"))
    parser.add_argument("names", nargs="*", choices=[[], *MODELS], metavar="NAME")
    arguments = parser.parse_args()
    if arguments.convert:
        folder, out, kind, pre = arguments.convert
        write_gguf(pathlib.Path(folder), out, {"": Type[kind]}, pre)
        return
    for name in arguments.names or MODELS:
        make(name, arguments.out)


if __name__ == "__main__":
    main()
