"""Keywords: their help, and what to use instead of those of vLLM that do not exist here."""
from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NoReturn

from nanovllm import _engine

_SAMPLING = {
    "best_of": "use n, and choose among the completions",
    "use_beam_search": "there is no beam search; use n with a temperature",
    "guided_decoding": "outputs can't be bound to a grammar",
    "structured_outputs": "outputs can't be bound to a grammar",
    "logits_processors": "use logit_bias, bad_words or min_p",
    "allowed_token_ids": "use logit_bias",
    "detokenize": "the text always comes with the token ids",
    "spaces_between_special_tokens": "special tokens stand in the text as the tokenizer has them",
    "truncate_prompt_tokens": "cut the prompt's token ids before",
}
_ENGINE = {
    "block_size": "use kvcache_block_size",
    "num_gpu_blocks_override": "use num_kvcache_blocks",
    "kv_cache_memory_bytes": "use kv_cache_memory",
    "tokenizer": "the model's own is used; give token ids for another one's",
    "tokenizer_mode": "the model's own tokenizer is used",
    "skip_tokenizer_init": "give token ids, and the tokenizer is not used",
    "trust_remote_code": "no code of a model is ever run",
    "quantization": "the checkpoint says how it is quantized",
    "load_format": "safetensors and GGUF are recognised",
    "revision": "write it after the model's name",
    "download_dir": "set HF_HOME",
    "hf_token": "set HF_TOKEN",
    "swap_space": "a preempted request is computed again; nothing is swapped",
    "cpu_offload_gb": "the weights must fit into the device's memory",
    "kv_cache_dtype": "the KV cache has the dtype of the activations",
    "pipeline_parallel_size": "use tensor_parallel_size",
    "data_parallel_size": "start several programs, or `nanovllm serve`",
    "distributed_executor_backend": "ranks are threads of this process",
    "enable_chunked_prefill": "long prompts are always computed in chunks of max_num_batched_tokens",
    "disable_log_stats": "nothing is logged; see RequestOutput.metrics and LLMEngine.last_step",
    "speculative_config": "there is no draft model",
    "compilation_config": "there is nothing to compile; enforce_eager does without CUDA graphs",
    "enable_lora": "merge the adapter into the weights",
    "limit_mm_per_prompt": "prompts are texts and token ids",
    "task": "models generate",
}


_IN_PYTHON = {
    "--engine-seed": "the engine's seed",
    "with --scheduling-policy priority": 'with scheduling_policy="priority"',
}


def _describe(cls: type, rows: list[tuple[str, Any, str]], first: list[inspect.Parameter]) -> None:
    """Adds a table's rows to what help() says of a class."""
    lines = []
    for name, default, text in rows:
        for flag, words in _IN_PYTHON.items():
            text = text.replace(flag, words)
        note = ", where vLLM has 16" if name == "max_tokens" else ""
        lines.append(f"    {name} = {default!r}{note}: {text}")
    cls.__doc__ = "\n".join([(cls.__doc__ or "").rstrip(), "", *lines])
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default, _ in rows
    ]
    setattr(cls, "__signature__", inspect.Signature([*first, *named]))


def describe_parameters(cls: type) -> None:
    cls.__doc__ = "How a request's tokens are chosen. Meanings, ranges and errors are vLLM's."
    _describe(cls, _engine.parameters(), [])


def describe_engine(cls: type) -> None:
    model = inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    _describe(cls, _engine.config_fields(), [model])


def _refuse(function: str, name: str, known: list[str], explained: Mapping[str, str]) -> NoReturn:
    sentence = f"{function}() got an unexpected keyword argument {name!r}"
    if name in explained:
        raise TypeError(f"{sentence}, which vLLM has: {explained[name]}.")
    raise TypeError(f"{sentence}; there are {', '.join(known)}.")


def refuse_parameter(name: str) -> NoReturn:
    """Called where SamplingParams gets a keyword that the table of parameters does not have."""
    known = [parameter for parameter, _, _ in _engine.parameters()]
    _refuse("SamplingParams", name, known, _SAMPLING)


def checked(function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's keywords without those that are None, vLLM's word for a default; or a TypeError that
    names the first one that there is not."""
    known = [name for name, _, _ in _engine.config_fields()]
    for name in arguments:
        if name not in known:
            _refuse(function, name, known, _ENGINE)
    return {name: value for name, value in arguments.items() if value is not None}
