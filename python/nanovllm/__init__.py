"""nano-vLLM in C++20, for Python: generate text with large language models.

    from nanovllm import LLM, SamplingParams
    llm = LLM("models/demo")
    outputs = llm.generate(["Once upon a time"], SamplingParams(temperature=0, max_tokens=32))
    print(outputs[0].outputs[0].text)  # as in vLLM
    print(outputs[0]["text"])          # as in nano-vLLM

LLM generates for lists of prompts, AsyncLLM serves many callers of an asyncio program, and LLMEngine
is stepped by hand.
"""
from typing import TYPE_CHECKING

from nanovllm._engine import RequestOutputKind, SamplingParams, __version__
from nanovllm.llm import LLM, LLMEngine
from nanovllm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, StepStats

if TYPE_CHECKING:
    from nanovllm.async_llm import AsyncLLM

__all__ = ["LLM", "AsyncLLM", "CompletionOutput", "LLMEngine", "Logprob", "RequestMetrics", "RequestOutput",
           "RequestOutputKind", "SamplingParams", "StepStats", "__version__"]


def __getattr__(name: str) -> object:
    """AsyncLLM comes when it is asked for: asyncio takes longer to import than all else."""
    if name != "AsyncLLM":
        raise AttributeError(f"module 'nanovllm' has no attribute {name!r}")
    from nanovllm.async_llm import AsyncLLM

    return AsyncLLM
