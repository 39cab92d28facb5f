"""Where vLLM's programs import it from."""
from nanovllm.llm import LLM

__all__ = ["LLM"]
