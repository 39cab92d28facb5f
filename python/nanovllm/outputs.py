"""What requests give back: the attributes of vLLM's classes of the same names."""
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Logprob:
    """One candidate of a position: the natural logarithm of its probability before sampling
    parameters, its rank (1 = most likely) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's n completions."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None  # token id -> candidate, the chosen one first
    finish_reason: str | None = None  # stop, length, abort
    stop_reason: int | str | None = None  # the stop token or text that ended it

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Seconds since the request was added; 0 where that has not come."""

    time_to_first_step: float = 0.0
    time_to_first_token: float = 0.0
    time_to_last_token: float = 0.0
    time_to_finish: float = 0.0

    @property
    def first_token_latency(self) -> float:
        return self.time_to_first_token

    @property
    def time_in_queue(self) -> float:
        return self.time_to_first_step


@dataclass(slots=True)
class RequestOutput(Mapping[str, "str | list[int]"]):
    """What came of a prompt. output["text"] and output["token_ids"] are those of the first
    completion, as nano-vLLM has them: it is a mapping with these two keys."""

    request_id: str
    prompt: str | None  # None where token ids were given
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0  # prompt tokens that the prefix cache had
    num_preemptions: int = 0

    def __iter__(self) -> Iterator[str]:
        return iter(("text", "token_ids"))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: str) -> "str | list[int]":
        if key == "text":
            return self.outputs[0].text
        if key == "token_ids":
            return self.outputs[0].token_ids
        raise KeyError(key)


@dataclass(slots=True)
class StepStats:
    """What one step did. From num_preemptions on, all count since the last step that was told."""

    num_prefill_tokens: int
    num_decode_tokens: int
    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_total_blocks: int
    num_used_states: int  # sequences that have some; layers that are recurrent keep them
    num_total_states: int  # sequences there is room for
    seconds: float
    num_preemptions: int
    num_prompt_tokens: int
    num_generation_tokens: int
    num_prefix_cache_queries: int
    num_prefix_cache_hits: int
    num_drafts: int  # sequences that had a draft
    num_draft_tokens: int
    num_accepted_per_pos: list[int]  # how often the token at each place of a draft was right
