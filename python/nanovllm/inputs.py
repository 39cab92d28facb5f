"""Prompts that are dicts, as vLLM names them."""
from typing import TypedDict

from nanovllm._prompts import Prompt as PromptType

__all__ = ["PromptType", "TextPrompt", "TokensPrompt"]


class _Salted(TypedDict, total=False):
    cache_salt: str


class TextPrompt(_Salted):
    prompt: str


class TokensPrompt(_Salted):
    prompt_token_ids: list[int]
