"""Where vLLM's programs import it from."""
from nanovllm.async_llm import AsyncLLM

__all__ = ["AsyncLLM"]
