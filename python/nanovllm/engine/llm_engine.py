"""Where vLLM's programs import it from."""
from nanovllm.llm import LLMEngine

__all__ = ["LLMEngine"]
