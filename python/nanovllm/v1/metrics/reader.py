"""Where vLLM has the metrics of get_metrics()."""
raise ImportError(
    "nanovllm has no classes of vllm.v1.metrics: see RequestOutput.metrics and LLMEngine.last_step, or /metrics of `nanovllm serve`."
)
