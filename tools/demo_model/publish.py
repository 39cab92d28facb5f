"""From a trained model to a folder in Hugging Face layout, and back into transformers."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from .model import Qwen3, Shape
from .tokens import BPE_SIZE, ENDOFTEXT, IM_END, SPECIALS

ENDOFTEXT_ID, IM_END_ID = BPE_SIZE + SPECIALS.index(ENDOFTEXT), BPE_SIZE + SPECIALS.index(IM_END)
MAX_BYTES = 16_000_000
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def config_of(shape: Shape) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        rms_norm_eps=shape.rms_norm_eps,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=IM_END_ID,
        pad_token_id=ENDOFTEXT_ID,
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
    )


def in_transformers(model: Qwen3, dtype: torch.dtype) -> Qwen3ForCausalLM:
    """The same weights in transformers' own implementation, on the same device."""
    other = Qwen3ForCausalLM(config_of(model.shape))
    missing, surplus = other.load_state_dict(model.state_dict(), strict=False)
    if surplus or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"parameter names differ from transformers': {missing} {surplus}")
    other.tie_weights()
    return other.to(device=model.head.device, dtype=dtype).eval()


def save_weights(model: Qwen3, path: Path) -> None:
    tensors = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors keeps what it writes to its owner


def load_weights(shape: Shape, path: Path) -> Qwen3:
    model = Qwen3(shape, dropout=0.0)
    model.load_state_dict({k: v.float() for k, v in load_file(path).items()})
    return model.eval()


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_folder(model: Qwen3, tokenizer_json: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(model, folder / "model.safetensors")
    config_of(model.shape).save_pretrained(folder)
    GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_k=0,
        top_p=0.9,
        eos_token_id=[IM_END_ID, ENDOFTEXT_ID],
        pad_token_id=ENDOFTEXT_ID,
    ).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_json.read_bytes())
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "bos_token": None,
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": IM_END,
            "errors": "replace",
            "extra_special_tokens": {},
            "model_max_length": model.shape.max_position_embeddings,
            "pad_token": ENDOFTEXT,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": None,
        },
    )


def check_size(folder: Path) -> int:
    size = sum(f.stat().st_size for f in folder.iterdir())
    if size > MAX_BYTES:
        raise SystemExit(f"{folder}: {size} bytes, more than the {MAX_BYTES} it may have")
    return size
