"""Where vLLM has LoRARequest."""
raise ImportError("nanovllm has no LoRARequest, which vLLM has: merge the adapter into the weights.")
