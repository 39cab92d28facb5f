"""AsyncLLM: one engine for the many callers of an asyncio program."""
from __future__ import annotations

import asyncio
import itertools
import os
import weakref
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nanovllm import _engine
from nanovllm._arguments import describe_engine
from nanovllm._engine import RequestOutputKind, SamplingParams
from nanovllm._model import Model
from nanovllm._prompts import Prompt
from nanovllm.outputs import CompletionOutput, RequestOutput

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nanovllm._arguments import EngineArgs


class _Stream:
    """A request's outputs between the engine's events and the caller that waits for them."""

    def __init__(self, request_id: str, prompt: Prompt, params: SamplingParams) -> None:
        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        self.kind = params.output_kind
        self.total = RequestOutput(
            request_id=request_id,
            prompt=text if isinstance(text, str) else None,
            prompt_token_ids=[],
            prompt_logprobs=None,
            outputs=[CompletionOutput(i, "", []) for i in range(params.n)],
            finished=False,
        )
        self.error: BaseException | None = None
        self.is_over = False
        self.news = asyncio.Event()

    def receive(self, kind: str, *event: Any) -> None:
        total = self.total
        if kind == "prompt":
            (total.prompt_logprobs,) = event
        elif kind == "delta":
            index, text, token_ids, logprobs = event
            to = total.outputs[index]
            to.text += text
            to.token_ids += token_ids
            if logprobs is not None:
                to.logprobs = (to.logprobs or []) + logprobs
                chosen = sum(next(iter(position.values())).logprob for position in logprobs)
                to.cumulative_logprob = (to.cumulative_logprob or 0.0) + chosen
        elif kind == "end":
            index, reason, stop_reason, self.is_over, total.num_cached_tokens = event[:5]
            total.num_preemptions, total.metrics = event[5:]
            total.outputs[index].finish_reason = reason
            total.outputs[index].stop_reason = stop_reason
            total.finished = self.is_over
        else:
            (self.error,) = event
            self.is_over = True
        if self.is_over or self.kind != RequestOutputKind.FINAL_ONLY:
            self.news.set()

    def take(self) -> RequestOutput:
        """What the caller gets now: its own copy."""
        self.news.clear()
        if self.error is not None:
            raise self.error
        taken, self.total = self.total, replace(self.total)
        if self.kind == RequestOutputKind.DELTA:
            self.total.outputs = [
                replace(c, text="", token_ids=[], logprobs=None) for c in taken.outputs
            ]
        else:
            self.total.outputs = [
                replace(c, token_ids=c.token_ids[:], logprobs=c.logprobs and c.logprobs[:])
                for c in taken.outputs
            ]
        return taken


class AsyncLLM(Model[_engine.Loop]):
    """A model that serves the many callers of an asyncio program, on a thread of its own.

    model: a Hugging Face model folder or a GGUF file. Keywords:
    """

    def __init__(self, model: "str | os.PathLike[str]", **kwargs: "Unpack[EngineArgs]") -> None:
        super().__init__(_engine.Loop, model, kwargs)
        self._streams: dict[int, _Stream] = {}
        self._numbers: dict[str, int] = {}  # of the running requests, by their ids
        self._unused = itertools.count()
        self._watched_by: asyncio.AbstractEventLoop | None = None

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generates for one prompt, as sampling_params.output_kind says: all so far (the default),
        what is new, or all at the end. Who stops to listen, or is cancelled, aborts the request.
        """
        params = self._checked(sampling_params)
        number = next(n for n in self._unused if request_id is not None or str(n) not in self._numbers)
        name = str(number) if request_id is None else request_id
        if name in self._numbers:
            raise ValueError(f"The request id {name!r} is in use.")
        self._watch()
        stream = _Stream(name, prompt, params)
        stream.total.prompt_token_ids = self._core.add(number, prompt, params)
        self._streams[number], self._numbers[name] = stream, number
        try:
            while True:
                await stream.news.wait()
                is_over = stream.is_over
                yield stream.take()
                if is_over:
                    return
        finally:
            del self._streams[number], self._numbers[name]
            if not stream.is_over:
                self._core.abort(number)

    async def abort(self, request_id: str) -> None:
        """Ends a request now: its last output has finish_reason "abort"."""
        if request_id in self._numbers:
            self._core.abort(self._numbers[request_id])

    def shutdown(self) -> None:
        """Ends all requests with RuntimeError and gives the model's memory back."""
        self._core.close()
        self._dispatch()
        if self._watched_by is not None:
            self._unwatch()

    def _watch(self) -> None:
        running = asyncio.get_running_loop()
        if running is self._watched_by:
            return
        if self._watched_by is not None and not self._watched_by.is_closed():
            raise RuntimeError("An AsyncLLM serves the callers of one event loop at a time.")
        news = weakref.WeakMethod(self._dispatch)  # who forgets an AsyncLLM has its memory back
        running.add_reader(self._core.fileno(), lambda: (news() or int)())
        self._watched_by = running
        self._unwatch = weakref.finalize(self, _unwatch, running, self._core.fileno())


    def _dispatch(self) -> None:
        for kind, number, *event in self._core.take():
            if stream := self._streams.get(number):
                stream.receive(kind, *event)


def _unwatch(watched_by: asyncio.AbstractEventLoop, file: int) -> None:
    if not watched_by.is_closed():
        watched_by.remove_reader(file)


describe_engine(AsyncLLM)
