"""Where vLLM's programs import it from, under its older name."""
from nanovllm.async_llm import AsyncLLM

AsyncLLMEngine = AsyncLLM
