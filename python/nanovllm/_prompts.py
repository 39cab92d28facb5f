"""Prompts and messages in the forms in which vLLM and nano-vLLM take them."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

Prompt: TypeAlias = "str | Sequence[int] | Mapping[str, Any] | Any"  # Any: arrays of integers
Message: TypeAlias = Mapping[str, Any]


def as_list(prompts: Prompt | Iterable[Prompt]) -> list[Any]:
    """A list of prompts, where one alone may have been given."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, (bytes, Integral)):
        return [prompts]
    items = prompts.tolist() if hasattr(prompts, "tolist") else list(prompts)
    return [items] if not isinstance(items, list) or (items and isinstance(items[0], Integral)) else items


def conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Any]:
    """A list of conversations, where one alone may have been given."""
    if messages and isinstance(messages[0], Mapping):
        return [messages]
    return list(messages)
