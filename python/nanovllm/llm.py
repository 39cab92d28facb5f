"""LLM and LLMEngine: one engine, which one thread uses at a time."""
from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nanovllm import _engine
from nanovllm._arguments import check_call, describe_engine, describe_parameters
from nanovllm._engine import SamplingParams
from nanovllm._model import Model
from nanovllm._prompts import Message, Prompt, as_list, conversations, with_priorities, with_priority, with_salt
from nanovllm.outputs import RequestOutput, StepStats

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nanovllm._engine import EngineArgs


class LLMEngine(Model[_engine.Engine]):
    """The engine below LLM: requests in, one step at a time, outputs out.

    model: a Hugging Face model folder, a GGUF file, or a name of the hub (OWNER/MODEL, with @REVISION
    or :TYPE of GGUF). One thread calls it at a time. Raises FileNotFoundError, ValueError or
    MemoryError where it can't be loaded. Keywords:
    """

    def __init__(self, model: "str | os.PathLike[str]", **kwargs: "Unpack[EngineArgs]") -> None:
        super().__init__(_engine.Engine, model, kwargs)
        self._names: dict[int, str] = {}  # of requests whose end was not told yet
        self._numbers: dict[str, int] = {}

    def add_request(self, *request: Any, **kwargs: Any) -> str:
        """add_request(prompt, params=None), or vLLM's add_request(request_id, prompt, params); both with
        a priority in place of that of params, if they should have one.

        Queues a request and returns its id.
        """
        own = {name: kwargs.pop(name) for name in ("request_id", "prompt", "params", "priority") if name in kwargs}
        check_call("add_request", kwargs)
        kwargs, priority = own, own.pop("priority", None)
        has_id = "request_id" in kwargs or (request and "prompt" in kwargs)
        if has_id or len(request) + len(kwargs) > 2:
            return self._add(priority, *request, **kwargs)
        return self._add(priority, None, *request, **kwargs)

    def _add(
        self, priority: int | None, request_id: str | None, prompt: Prompt, params: SamplingParams | None = None
    ) -> str:
        if request_id in self._numbers:
            raise ValueError(f"The request id {request_id!r} is in use.")
        params = self._checked(params)
        if priority is not None:
            params = with_priority(params, priority)
        number = self._core.add_request(*with_salt(prompt, params))
        unused = (str(n) for n in itertools.count(number) if str(n) not in self._numbers)
        name = next(unused) if request_id is None else request_id
        self._names[number], self._numbers[name] = name, number
        return name

    def step(self) -> list[RequestOutput]:
        """Runs one step and returns the requests that gained tokens or ended in it."""
        outputs = self._core.step()
        for output in outputs:
            number = int(output.request_id)
            output.request_id = self._names[number]
            if output.finished:
                del self._numbers[self._names.pop(number)]
        return outputs

    def abort_request(self, request_id: "str | Iterable[str]") -> None:
        """Ends requests now; the next step tells, with finish_reason "abort"."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            if name in self._numbers:
                self._core.abort_request(self._numbers[name])

    def is_finished(self) -> bool:
        """Whether all requests have ended and their outputs were taken."""
        return self._core.is_finished()

    def has_unfinished_requests(self) -> bool:
        return not self.is_finished()

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Requests of later calls find nothing of what was computed until now. What runs goes on as it is,
        reset_running_requests or not: its tokens are the same. True, as vLLM tells success."""
        self._core.reset_prefix_cache()
        return True

    def start_profile(self, profile_prefix: str | None = None) -> str:
        """Writes a Chrome/Perfetto trace from now on, and returns its file's name: PREFIX.trace.json, without a
        prefix the engine's trace_file, and without that nanovllm.trace.json."""
        file = self._profile(profile_prefix)
        self._core.start_trace(file)
        return file

    def stop_profile(self) -> None:
        """Completes the trace."""
        self._core.finish_trace()

    @property
    def last_step(self) -> StepStats:
        """What the last step did."""
        return self._core.last_step()

    def exit(self) -> None:
        """Gives the model's memory back; later calls raise RuntimeError."""
        self._core.close()


class LLM(LLMEngine):
    """A model that generates for lists of prompts.

    model: a folder, a GGUF file or a name of the hub. What LLMEngine does, it does too. Keywords:
    """

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        priority: int | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> list[RequestOutput]:
        """Generates for all prompts at once; outputs are in their order.

        prompts: texts, lists or arrays of token ids, {"prompt": text} or {"prompt_token_ids": ids},
        these with a "cache_salt" if they should have one; or one of these alone. sampling_params: one for all, one each, or the model's own. use_tqdm:
        whether to show progress, or what to show it with instead of tqdm. priority: one for all or
        one each, in place of that of the parameters. kwargs: vLLM's others, where they ask for nothing.

        Raises what is wrong with a prompt or its parameters before any work. Ctrl-C ends it after
        the running step, and the engine is free for the next call.
        """
        check_call("generate", kwargs)
        asked = as_list(prompts)
        each = (
            [self._checked(params) for params in sampling_params]
            if isinstance(sampling_params, (list, tuple))
            else [self._checked(sampling_params)] * len(asked)
        )
        if priority is not None:
            each = with_priorities(each, priority, len(asked))
        if len(each) == len(asked):  # else the engine refuses them
            pairs = [with_salt(prompt, params) for prompt, params in zip(asked, each)]
            asked, each = [prompt for prompt, _ in pairs], [params for _, params in pairs]
        if not use_tqdm:
            return self._core.generate(asked, each, None)
        from nanovllm._progress import Progress

        with Progress(len(asked), use_tqdm) as progress:
            return self._core.generate(asked, each, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[RequestOutput]:
        """Answers a conversation, or each of several: lists of {"role": ..., "content": ...}.

        The prompt is what the model's chat template, or chat_template, makes of them;
        chat_template_kwargs are its variables, enable_thinking for instance. With
        continue_final_message=True and add_generation_prompt=False the last message is not answered but
        gone on with. The rest is generate()'s.
        """
        check_call("chat", kwargs)
        prompts = [
            self.render_chat(
                conversation, add_generation_prompt, tools, chat_template, chat_template_kwargs, continue_final_message
            )
            for conversation in conversations(messages)
        ]
        outputs = self.generate(prompts, sampling_params, use_tqdm, priority=priority)
        for output, prompt in zip(outputs, prompts):
            output.prompt = prompt["prompt"]
        return outputs

    @property
    def llm_engine(self) -> LLMEngine:
        return self


describe_parameters()
describe_engine(LLMEngine)
describe_engine(LLM)
