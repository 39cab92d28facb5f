"""nano-vLLM in C++20, for Python: generate text with large language models.

    from nanovllm import LLM, SamplingParams
    llm = LLM("models/demo")
    outputs = llm.generate(["Once upon a time"], SamplingParams(temperature=0, max_tokens=32))
    print(outputs[0].outputs[0].text)  # as in vLLM
    print(outputs[0]["text"])          # as in nano-vLLM

LLM generates for lists of prompts, AsyncLLM serves many callers of an asyncio program, and LLMEngine
is stepped by hand.
"""
from importlib import import_module
from typing import TYPE_CHECKING

from nanovllm._engine import RequestOutputKind, SamplingParams, StructuredOutputsParams, __version__
from nanovllm.inputs import PromptType, TextPrompt, TokensPrompt
from nanovllm.llm import LLM, LLMEngine
from nanovllm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, StepStats

if TYPE_CHECKING:
    from nanovllm.async_llm import AsyncLLM
    from nanovllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from nanovllm.engine.async_llm_engine import AsyncLLMEngine

__all__ = ["LLM", "AsyncEngineArgs", "AsyncLLM", "AsyncLLMEngine", "CompletionOutput", "EngineArgs", "LLMEngine", "Logprob",
           "PromptType", "RequestMetrics", "RequestOutput", "RequestOutputKind", "SamplingParams", "StepStats",
           "StructuredOutputsParams", "TextPrompt", "TokensPrompt", "__version__"]
# They come when they are asked for: asyncio and argparse take longer to import than all else.
_LATER = {
    "AsyncLLM": "nanovllm.async_llm",
    "AsyncLLMEngine": "nanovllm.engine.async_llm_engine",
    "AsyncEngineArgs": "nanovllm.engine.arg_utils",
    "EngineArgs": "nanovllm.engine.arg_utils",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        parameters = import_module("nanovllm.sampling_params")
        if name in parameters._NOT_HERE:
            getattr(parameters, name)  # which says what to use instead
        raise AttributeError(f"module 'nanovllm' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
