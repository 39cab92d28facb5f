"""AsyncLLM: one engine for the many callers of an asyncio program."""
from __future__ import annotations

import asyncio
import itertools
import os
import weakref
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, Any

from nanovllm import _engine
from nanovllm._arguments import check_call, describe_engine
from nanovllm._engine import RequestOutputKind, SamplingParams
from nanovllm._model import Model
from nanovllm._prompts import Prompt, with_priority, with_salt
from nanovllm.outputs import CompletionOutput, RequestOutput

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nanovllm._engine import EngineArgs


def _accumulate(so_far: list[CompletionOutput], output: RequestOutput, kind: RequestOutputKind) -> None:
    """Adds what is new to what there was, and gives the caller a copy of that where he wants it."""
    for total, new in zip(so_far, output.outputs):
        total.text += new.text
        total.token_ids += new.token_ids
        if new.logprobs is not None:
            total.logprobs = [*(total.logprobs or []), *new.logprobs]
            total.cumulative_logprob = (total.cumulative_logprob or 0.0) + (new.cumulative_logprob or 0.0)
        new.cumulative_logprob = total.cumulative_logprob
        if kind != RequestOutputKind.DELTA:
            new.text, new.token_ids = total.text, total.token_ids[:]
            new.logprobs = total.logprobs and total.logprobs[:]


class AsyncLLM(Model[_engine.Loop]):
    """A model that serves the many callers of an asyncio program, on a thread of its own.

    model: a folder, a GGUF file or a name of the hub. Keywords:
    """

    def __init__(self, model: "str | os.PathLike[str]", **kwargs: "Unpack[EngineArgs]") -> None:
        super().__init__(_engine.Loop, model, kwargs)
        self._news: dict[int, asyncio.Event] = {}  # of the running requests, by their numbers
        self._numbers: dict[str, int] = {}  # of the running requests, by their ids
        self._unused = itertools.count()
        self._watched_by: asyncio.AbstractEventLoop | None = None

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generates for one prompt, as sampling_params.output_kind says: all so far (the default),
        what is new, or all at the end. Who stops to listen, or is cancelled, aborts the request.
        priority: in place of that of the parameters. kwargs: vLLM's others, where they ask for nothing.
        """
        check_call("generate", kwargs)
        params = self._checked(sampling_params)
        if priority is not None:
            params = with_priority(params, priority)
        prompt, params = with_salt(prompt, params)
        number = next(n for n in self._unused if request_id is not None or str(n) not in self._numbers)
        name = str(number) if request_id is None else request_id
        if name in self._numbers:
            raise ValueError(f"The request id {name!r} is in use.")
        self._watch()
        ids = self._core.add(number, prompt, params)
        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        so_far = [CompletionOutput(i, "", []) for i in range(params.n)]
        prompt_logprobs = None
        news = self._news[number] = asyncio.Event()
        self._numbers[name] = number
        is_over = False
        try:
            while not is_over:
                await news.wait()
                news.clear()
                output = self._core.output(number)
                is_over = output.finished
                prompt_logprobs = prompt_logprobs or output.prompt_logprobs
                output.request_id, output.prompt_logprobs = name, prompt_logprobs
                output.prompt, output.prompt_token_ids = text if isinstance(text, str) else None, ids
                _accumulate(so_far, output, params.output_kind)
                yield output
        finally:
            del self._news[number], self._numbers[name]
            self._core.forget(number)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends requests now: their last outputs have finish_reason "abort"."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            if name in self._numbers:
                self._core.abort(self._numbers[name])

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """As LLM's; it waits for the running step."""
        await asyncio.to_thread(self._core.reset_prefix_cache)
        return True

    async def start_profile(self, profile_prefix: str | None = None) -> str:
        """As LLM's; it waits for the running step."""
        file = self._profile(profile_prefix)
        await asyncio.to_thread(self._core.start_trace, file)
        return file

    async def stop_profile(self) -> None:
        """Completes the trace."""
        await asyncio.to_thread(self._core.finish_trace)

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
        for number in self._core.take():
            if news := self._news.get(number):
                news.set()


def _unwatch(watched_by: asyncio.AbstractEventLoop, file: int) -> None:
    if not watched_by.is_closed():
        watched_by.remove_reader(file)


describe_engine(AsyncLLM)
