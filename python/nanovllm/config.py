"""Where vLLM has classes for parts of a configuration."""
raise ImportError("nanovllm has no classes of vllm.config: an engine's keywords are plain values, and help(nanovllm.LLM) lists them.")
