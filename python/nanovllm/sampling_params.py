"""Where vLLM's programs import these from."""
from nanovllm._engine import RequestOutputKind, SamplingParams, StructuredOutputsParams

__all__ = ["RequestOutputKind", "SamplingParams", "StructuredOutputsParams"]
_NOT_HERE = {
    "BeamSearchParams": "there is no beam search; use n with a temperature",
    "GuidedDecodingParams": "use StructuredOutputsParams",
}


def __getattr__(name: str) -> object:
    if name in _NOT_HERE:
        raise ImportError(f"nanovllm has no {name}, which vLLM has: {_NOT_HERE[name]}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
