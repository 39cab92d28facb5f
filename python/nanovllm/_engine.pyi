# What C++ defines. A test compares the keywords of SamplingParams and of engines with their tables.
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypedDict

from nanovllm.outputs import RequestOutput, StepStats

__version__: str

class RequestOutputKind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2

class StructuredOutputsParams:
    def __init__(
        self, json: str | dict[str, Any] | None = None, regex: str | None = None, choice: Sequence[str] | None = None,
        grammar: str | None = None, json_object: bool | None = None, disable_any_whitespace: bool = False,
        disable_additional_properties: bool = False, whitespace_pattern: str | None = None,
        structural_tag: str | dict[str, Any] | None = None,
    ) -> None: ...
    @property
    def json(self) -> str | None: ...
    @property
    def regex(self) -> str | None: ...
    @property
    def choice(self) -> list[str] | None: ...
    @property
    def grammar(self) -> str | None: ...
    @property
    def json_object(self) -> bool: ...
    @property
    def disable_any_whitespace(self) -> bool: ...
    @property
    def disable_additional_properties(self) -> bool: ...
    @property
    def whitespace_pattern(self) -> str | None: ...
    @property
    def structural_tag(self) -> str | None: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

class SamplingParams:
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    max_tokens: int | None
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    min_tokens: int
    ignore_eos: bool
    thinking_token_budget: int | None
    structured_outputs: StructuredOutputsParams | None
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    n: int
    logprobs: int | None
    prompt_logprobs: int | None
    priority: int
    cache_salt: str | None
    output_kind: RequestOutputKind
    __hash__: ClassVar[None]  # type: ignore[assignment]
    def __init__(
        self, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
        repetition_penalty: float = 1.0, max_tokens: int | None = 64, presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0, logit_bias:
        Mapping[int, float] | Mapping[str, float] | None = {}, seed: int | None =
        None, min_tokens: int = 0, ignore_eos: bool = False, stop: str | Sequence[str] | None = [],
        stop_token_ids: Sequence[int] | None = [], allowed_token_ids: Sequence[int] | None = None, bad_words: Sequence[str] | None = [],
        thinking_token_budget: int | None = None, structured_outputs: StructuredOutputsParams | None = None, include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True, n: int = 1, logprobs: int | None = None,
        prompt_logprobs: int | None = None, priority: int = 0, cache_salt: str | None = None,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
    ) -> None: ...
    @property
    def logit_bias(self) -> dict[int, float]: ...
    @logit_bias.setter
    def logit_bias(self, value: Mapping[int, float] | Mapping[str, float] | None) -> None: ...
    @property
    def stop(self) -> list[str]: ...
    @stop.setter
    def stop(self, value: str | Sequence[str] | None) -> None: ...
    @property
    def stop_token_ids(self) -> list[int]: ...
    @stop_token_ids.setter
    def stop_token_ids(self, value: Sequence[int] | None) -> None: ...
    @property
    def allowed_token_ids(self) -> list[int] | None: ...
    @allowed_token_ids.setter
    def allowed_token_ids(self, value: Sequence[int] | None) -> None: ...
    @property
    def bad_words(self) -> list[str]: ...
    @bad_words.setter
    def bad_words(self, value: Sequence[str] | None) -> None: ...
    def clone(self) -> SamplingParams: ...

class ChatTemplate:
    @staticmethod
    def load(model: str) -> ChatTemplate: ...
    @staticmethod
    def from_source(source: str, model: str) -> ChatTemplate: ...
    def render(
        self, messages: Any, tools: Any, kwargs: dict[str, Any], add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> tuple[str, bool]: ...

class EngineArgs(TypedDict, total=False):
    """The keywords of LLM, LLMEngine and AsyncLLM; None is the default."""
    device: str | None
    dtype: str | None
    weight_layout: str | None
    quantization: str | None
    num_threads: int | None
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_step_seconds: float | None
    kvcache_block_size: int | None
    num_kvcache_blocks: int | None
    kv_cache_memory: int | None
    state_cache_memory: int | None
    gpu_memory_utilization: float | None
    enable_prefix_caching: bool | None
    scheduling_policy: str | None
    first_gpu: int | None
    enforce_eager: bool | None
    deterministic: bool | None
    tensor_parallel_size: int | None
    enable_expert_parallel: bool | None
    speculative_config: str | dict[str, Any] | None
    seed: int | None
    trace_file: str | None

class _Core:
    def load(
        self, model: str, arguments: dict[str, Any], progress: Callable[[int, int, str], None]
    ) -> str: ...
    def default_sampling_params(self) -> SamplingParams: ...
    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: Any, skip_special_tokens: bool) -> str: ...
    def info(self) -> dict[str, Any]: ...
    def reset_prefix_cache(self) -> None: ...
    def start_trace(self, path: str) -> None: ...
    def finish_trace(self) -> None: ...
    def close(self) -> None: ...

class Engine(_Core):
    def generate(
        self, prompts: list[Any], params: list[SamplingParams],
        progress: Callable[[int, int, int], None] | None,
    ) -> list[RequestOutput]: ...
    def add_request(self, prompt: Any, params: SamplingParams) -> int: ...
    def abort_request(self, request_id: int) -> None: ...
    def step(self) -> list[RequestOutput]: ...
    def is_finished(self) -> bool: ...
    def last_step(self) -> StepStats: ...

class Loop(_Core):
    def fileno(self) -> int: ...
    def add(self, number: int, prompt: Any, params: SamplingParams) -> list[int]: ...
    def abort(self, number: int) -> None: ...
    def take(self) -> set[int]: ...
    def output(self, number: int) -> RequestOutput: ...
    def forget(self, number: int) -> None: ...

def end_calls() -> None: ...
def parameters() -> list[tuple[str, Any, str]]: ...
def parse_quantity(text: str, is_bytes: bool) -> float | None: ...
def config_fields() -> list[tuple[str, Any, str]]: ...
