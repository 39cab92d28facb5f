"""Keywords: their help, and what to use instead of those of vLLM that do not exist here."""
from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Container, Mapping
from functools import partial
from typing import Any, NamedTuple

from nanovllm import _engine
from nanovllm._engine import SamplingParams, StructuredOutputsParams


class Elsewhere(NamedTuple):
    """What vLLM has and we have not: what to use instead, and which values ask for nothing (None always does); the first is
    vLLM's default."""

    instead: str
    nothing: tuple[Any, ...] = (None,)


_SAMPLING = {
    "best_of": Elsewhere("use n, and choose among the completions", (None, 1)),
    "use_beam_search": Elsewhere("there is no beam search; use n with a temperature", (False,)),
    "guided_decoding": Elsewhere("use structured_outputs"),
    "logits_processors": Elsewhere("use logit_bias, allowed_token_ids, bad_words or min_p", (None, [])),
    "flat_logprobs": Elsewhere("log-probabilities come as lists of dicts", (False,)),
    "logprob_token_ids": Elsewhere("use logprobs, which tells the 20 most likely tokens at most"),
    "detokenize": Elsewhere("the text always comes with the token ids", (True,)),
    "spaces_between_special_tokens": Elsewhere("special tokens stand in the text as the tokenizer has them", (True,)),
    "truncate_prompt_tokens": Elsewhere("cut the prompt's token ids before"),
    "extra_args": Elsewhere("there are no plugins that would read them", (None, {})),
}
_STRUCTURED = {
    "disable_fallback": Elsewhere("there is one engine for grammars", (False,)),
    "backend": Elsewhere("there is one engine for grammars"),
    "_backend": Elsewhere("there is one engine for grammars"),
    "_backend_was_auto": Elsewhere("there is one engine for grammars", (False,)),
}
_ENGINE = {
    "block_size": Elsewhere("use kvcache_block_size"),
    "num_gpu_blocks_override": Elsewhere("use num_kvcache_blocks"),
    "kv_cache_memory_bytes": Elsewhere("use kv_cache_memory"),
    "tokenizer": Elsewhere("the model's own is used; give token ids for another one's"),
    "tokenizer_mode": Elsewhere("the model's own tokenizer is used", ("auto",)),
    "tokenizer_revision": Elsewhere("the tokenizer is that of the model's revision"),
    "skip_tokenizer_init": Elsewhere("give token ids, and the tokenizer is not used", (False,)),
    "chat_template": Elsewhere("give it to chat()"),
    "hf_overrides": Elsewhere("change the model's config.json", (None, {})),
    "config_format": Elsewhere("config.json and GGUF are recognised", ("auto", "hf")),
    "model_impl": Elsewhere("families are compiled in", ("auto", "vllm")),
    "generation_config": Elsewhere("give SamplingParams to each call", ("auto",)),
    "override_generation_config": Elsewhere("change what get_default_sampling_params() gives", (None, {})),
    "load_format": Elsewhere("safetensors and GGUF are recognised", ("auto", "safetensors")),
    "revision": Elsewhere("write it after the model's name"),
    "code_revision": Elsewhere("no code of a model is ever run"),
    "download_dir": Elsewhere("set HF_HOME"),
    "hf_token": Elsewhere("set HF_TOKEN", (None, False)),
    "served_model_name": Elsewhere("only `nanovllm serve` has names"),
    "cpu_offload_gb": Elsewhere("the weights must fit into the device's memory", (0.0,)),
    "kv_cache_dtype": Elsewhere("the KV cache has the dtype of the activations", ("auto",)),
    "mamba_cache_dtype": Elsewhere("states lose no bits in the cache", ("auto", "float32")),
    "mamba_ssm_cache_dtype": Elsewhere("states are float32", ("auto", "float32")),
    "pipeline_parallel_size": Elsewhere("use tensor_parallel_size", (1,)),
    "data_parallel_size": Elsewhere("start several programs, or `nanovllm serve`", (1,)),
    "enable_chunked_prefill": Elsewhere(
        "long prompts are always computed in chunks of max_num_batched_tokens", (True,)
    ),
    "async_scheduling": Elsewhere("steps are submitted ahead wherever the device can wait", (None, True)),
    "enable_log_requests": Elsewhere("nothing is logged", (False,)),
    "max_logprobs": Elsewhere("20 log-probabilities of a position are the most", (20,)),
    "logprobs_mode": Elsewhere("log-probabilities are those of the raw logits", ("raw_logprobs",)),
    "profiler_config": Elsewhere(
        "use trace_file, or start_profile() and stop_profile(), which write a trace", (None, {})
    ),
    "enable_sleep_mode": Elsewhere("exit() gives the memory back, and another LLM takes it", (False,)),
    "structured_outputs_config": Elsewhere("there is one engine for grammars; use SamplingParams' structured_outputs", (None, {})),
    "logits_processors": Elsewhere("use logit_bias, allowed_token_ids, bad_words or min_p", (None, [])),
    "enable_lora": Elsewhere("merge the adapter into the weights", (False,)),
    "enable_prompt_embeds": Elsewhere("prompts are texts and token ids", (False,)),
    "limit_mm_per_prompt": Elsewhere("prompts are texts and token ids", (None, {})),
    "mm_processor_kwargs": Elsewhere("prompts are texts and token ids", (None, {})),
    "runner": Elsewhere("models generate", ("auto", "generate")),
    "convert": Elsewhere("models generate", ("auto", "none")),
    "task": Elsewhere("models generate", (None, "auto", "generate")),
}
# Keywords of an engine that are taken whatever they say, as they change no answer here, with vLLM's defaults. The command takes
# them, too (src/cli/typed_words.cc).
_NO_EFFECT = {
    "trust_remote_code": False,
    "swap_space": 4,
    "attention_backend": None,
    "mamba_backend": None,
    "gdn_prefill_backend": None,
    "mamba_block_size": None,
    "mamba_cache_mode": "none",
    "compilation_config": None,
    "distributed_executor_backend": None,
    "disable_custom_all_reduce": False,
    "disable_log_stats": False,
}
# vLLM's words for a dtype that have another name here, as the command takes them (src/cli/typed_words.cc).
_DTYPES = {"half": "bfloat16", "float16": "bfloat16", "float": "float32"}
_CALLS = {
    "lora_request": Elsewhere("merge the adapter into the weights"),
    "prompt_token_ids": Elsewhere("they are prompts too"),
    "tokenization_kwargs": Elsewhere("give token ids, for instance encode()'s"),
    "mm_processor_kwargs": Elsewhere("prompts are texts and token ids", (None, {})),
    "chat_template_content_format": Elsewhere("contents come as the template wants them", ("auto",)),
    "arrival_time": Elsewhere("a request comes when it is added"),
    "trace_headers": Elsewhere("use trace_file"),
    "data_parallel_rank": Elsewhere("start several programs, or `nanovllm serve`"),
    "stat_loggers": Elsewhere("see RequestOutput.metrics"),
}
_ATTRIBUTES = {
    "sleep": "exit() gives the model's memory back, and another LLM takes it again",
    "wake_up": "load the model again after exit()",
    "get_metrics": "see RequestOutput.metrics and last_step, or /metrics of `nanovllm serve`",
    "pause_generation": "abort() what shall not go on, and ask for it again",
    "resume_generation": "abort() what shall not go on, and ask for it again",
    "beam_search": "there is no beam search; use n with a temperature",
    "enqueue": "use add_request() and step()",
    "wait_for_completion": "use add_request() and step()",
    "embed": "models generate",
    "classify": "models generate; allowed_token_ids and logprobs choose among tokens",
    "score": "models generate; allowed_token_ids and logprobs choose among tokens",
    "reward": "models generate",
    "collective_rpc": "there are no worker processes",
    "apply_model": "the model is no module of Python",
    "model_config": "use info",
    "vllm_config": "use info",
}
_PARAMETERS = [*(name for name, _, _ in _engine.parameters()), "output_kind"]
_CONSTRAINTS = ["json", "regex", "choice", "grammar", "json_object", "disable_any_whitespace", "disable_additional_properties",
                "whitespace_pattern", "structural_tag"]
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


def _changed(params: SamplingParams | StructuredOutputsParams) -> dict[str, Any]:
    """What differs from the defaults."""
    if isinstance(params, StructuredOutputsParams):
        return {name: value for name in _CONSTRAINTS if (value := getattr(params, name)) not in (None, False)}
    default = SamplingParams()
    return {name: value for name in _PARAMETERS if (value := getattr(params, name)) != getattr(default, name)}


def _repr(params: SamplingParams | StructuredOutputsParams) -> str:
    return f"{type(params).__name__}({', '.join(f'{name}={value!r}' for name, value in _changed(params).items())})"


def describe_parameters() -> None:
    """Gives SamplingParams what its table says: help(), repr() and pickles; the last two to StructuredOutputsParams too."""
    SamplingParams.__doc__ = "How a request's tokens are chosen. Meanings, ranges and errors are vLLM's."
    _describe(SamplingParams, _engine.parameters(), [])
    for cls in (SamplingParams, StructuredOutputsParams):
        setattr(cls, "__repr__", _repr)
        setattr(cls, "__reduce__", lambda self: (partial(self.__class__, **_changed(self)), ()))


def describe_engine(cls: type) -> None:
    model = inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    _describe(cls, _engine.config_fields(), [model])


def _known(
    function: str, arguments: Mapping[str, Any], known: Container[str], elsewhere: Mapping[str, Elsewhere], names: str = ""
) -> dict[str, Any]:
    """The arguments without those of vLLM that ask for nothing. A TypeError for the first that is not known."""
    for name, value in arguments.items():
        sentence = f"{function}() got an unexpected keyword argument {name!r}"
        other = elsewhere.get(name)
        if other is not None and value is not None and value not in other.nothing:
            raise TypeError(f"{sentence}, which vLLM has: {other.instead}.")
        if other is None and name not in known:
            raise TypeError(f"{sentence}; there are {names}." if names else f"{sentence}.")
    return {name: value for name, value in arguments.items() if name in known}


def known_parameters(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Called by SamplingParams where a keyword is wrong: those that ask for something, or a TypeError."""
    best_of = _SAMPLING["best_of"]
    best_of = best_of._replace(nothing=(*best_of.nothing, arguments.get("n")))
    return _known("SamplingParams", arguments, _PARAMETERS, {**_SAMPLING, "best_of": best_of}, ", ".join(_PARAMETERS))


def check_constraints(arguments: Mapping[str, Any]) -> None:
    """Called by StructuredOutputsParams for further keywords: a TypeError for those that ask for something."""
    _known("StructuredOutputsParams", arguments, (), _STRUCTURED, ", ".join(_CONSTRAINTS))


def engine_defaults() -> dict[str, Any]:
    """All keywords of an engine and those that only vLLM has, with their defaults."""
    others = {name: other.nothing[0] for name, other in _ENGINE.items()}
    return {**{name: default for name, default, _ in _engine.config_fields()}, **others, **_NO_EFFECT}


def checked(function: str, model: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's keywords without those that are None, vLLM's word for a default; or likewise a TypeError."""
    names = [name for name, _, _ in _engine.config_fields()]
    tokenizer = _ENGINE["tokenizer"]._replace(nothing=(model,))
    asking = {name: value for name, value in arguments.items() if name not in _NO_EFFECT}
    known = _known(function, asking, names, {**_ENGINE, "tokenizer": tokenizer}, ", ".join(names))
    if isinstance(speculative := known.get("speculative_config"), Mapping):
        known["speculative_config"] = json.dumps(dict(speculative))
    return {name: value for name, value in known.items() if value is not None}


def with_our_dtype(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, a dtype of another name at vLLM by ours; where it is another one, that is said."""
    dtype = arguments.get("dtype")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        return arguments
    taken = _DTYPES[dtype]
    if taken == "bfloat16":
        warnings.warn(f"dtype {dtype!r} is taken as bfloat16, as float16 checkpoints are", stacklevel=4)
    return {**arguments, "dtype": taken}


def check_call(function: str, arguments: Mapping[str, Any]) -> None:
    """A TypeError for further keywords of a call, where they ask for something."""
    _known(function, arguments, (), _CALLS)


def missing_attribute(owner: object, name: str) -> AttributeError:
    sentence = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in _ATTRIBUTES:
        sentence += f", which vLLM has: {_ATTRIBUTES[name]}"
    return AttributeError(f"{sentence}.", name=name, obj=owner)
