"""Where vLLM's programs import it from."""
from nanovllm.outputs import Logprob

__all__ = ["Logprob"]
