"""Keywords: their help, and what to use instead of those of vLLM that do not exist here."""
from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from nanovllm import _engine
from nanovllm._engine import SamplingParams

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
_PARAMETERS = [*(name for name, _, _ in _engine.parameters()), "output_kind"]
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


def _changed(params: SamplingParams) -> dict[str, Any]:
    """What differs from the defaults."""
    default = SamplingParams()
    return {name: value for name in _PARAMETERS if (value := getattr(params, name)) != getattr(default, name)}


def _repr(params: SamplingParams) -> str:
    return f"SamplingParams({', '.join(f'{name}={value!r}' for name, value in _changed(params).items())})"


def describe_parameters() -> None:
    """Gives SamplingParams what its table says: help(), repr() and pickles."""
    SamplingParams.__doc__ = "How a request's tokens are chosen. Meanings, ranges and errors are vLLM's."
    _describe(SamplingParams, _engine.parameters(), [])
    setattr(SamplingParams, "__repr__", _repr)
    setattr(SamplingParams, "__reduce__", lambda self: (partial(self.__class__, **_changed(self)), ()))


def describe_engine(cls: type) -> None:
    model = inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    _describe(cls, _engine.config_fields(), [model])


def _check(function: str, names: Iterable[str], known: list[str], explained: Mapping[str, str]) -> None:
    for name in names:
        sentence = f"{function}() got an unexpected keyword argument {name!r}"
        if name in explained:
            raise TypeError(f"{sentence}, which vLLM has: {explained[name]}.")
        if name not in known:
            raise TypeError(f"{sentence}; there are {', '.join(known)}.")


def check_parameters(names: Iterable[str]) -> None:
    """Called by SamplingParams: a TypeError for the first keyword that there is not."""
    _check("SamplingParams", names, _PARAMETERS, _SAMPLING)


def checked(function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's keywords without those that are None, vLLM's word for a default; or likewise a TypeError."""
    _check(function, arguments, [name for name, _, _ in _engine.config_fields()], _ENGINE)
    return {name: value for name, value in arguments.items() if value is not None}
