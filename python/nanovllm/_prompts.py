"""Prompts and messages in the forms in which vLLM and nano-vLLM take them."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

from nanovllm._engine import SamplingParams

Prompt: TypeAlias = "str | Sequence[int] | Mapping[str, Any] | Any"  # Any: arrays of integers
Message: TypeAlias = Mapping[str, Any]


def as_list(prompts: Prompt | Iterable[Prompt]) -> list[Any]:
    """A list of prompts, where one alone may have been given."""
    if isinstance(prompts, (str, bytes, Mapping)) or not _is_iterable(prompts):
        return [prompts]
    items = prompts.tolist() if hasattr(prompts, "tolist") else list(prompts)
    return [items] if not isinstance(items, list) or (items and isinstance(items[0], Integral)) else items


def with_priority(params: SamplingParams, priority: int) -> SamplingParams:
    params = params.clone()
    params.priority = priority
    return params


def _is_iterable(value: object) -> bool:
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def with_priorities(
    each: Sequence[SamplingParams], priority: int | Sequence[int], num_prompts: int
) -> list[SamplingParams]:
    """The parameters of each prompt, with one priority for all or priorities of their own."""
    priorities = [priority] * num_prompts if isinstance(priority, int) else priority
    if len(priorities) != num_prompts:
        raise ValueError(f"The lengths of prompts ({num_prompts}) and priority ({len(priorities)}) must be the same.")
    return [with_priority(one, value) for one, value in zip(each, priorities)]


def with_salt(prompt: Prompt, params: SamplingParams) -> tuple[Prompt, SamplingParams]:
    """A prompt and its parameters, which get the "cache_salt" that vLLM's prompts may hold."""
    if not isinstance(prompt, Mapping) or prompt.get("cache_salt") is None:
        return prompt, params
    params = params.clone()
    params.cache_salt = prompt["cache_salt"]
    return {key: value for key, value in prompt.items() if key != "cache_salt"}, params


def conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Any]:
    """A list of conversations, where one alone may have been given."""
    if isinstance(messages, Mapping) or not _is_iterable(messages):
        raise TypeError(
            'messages must be a list of dicts with "role" and "content", or of such lists, '
            f"got {type(messages).__name__}"
        )
    items = list(messages)
    return [items] if items and isinstance(items[0], Mapping) else items


def as_message(message: Message) -> Message:
    """A message, and nothing else that has keys or is none."""
    if not isinstance(message, Mapping):
        raise TypeError(f'a message must be a dict with "role" and "content", got {type(message).__name__}')
    return message
