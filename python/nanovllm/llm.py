"""LLM and LLMEngine: one engine, which one thread uses at a time."""
from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nanovllm import _engine
from nanovllm._arguments import checked, describe_engine, describe_parameters, resolved
from nanovllm._engine import SamplingParams
from nanovllm._prompts import Message, Prompt, as_list, conversations
from nanovllm.outputs import RequestOutput, StepStats

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nanovllm._arguments import EngineArgs


class LLMEngine:
    """The engine below LLM: requests in, one step at a time, outputs out.

    model: a Hugging Face model folder or a GGUF file. One thread calls it at a time. Raises
    FileNotFoundError, ValueError or MemoryError where it can't be loaded. Keywords:
    """

    def __init__(self, model: "str | os.PathLike[str]", **kwargs: "Unpack[EngineArgs]") -> None:
        self.model = resolved(model)
        self._engine = _engine.Engine(self.model, checked(type(self).__name__, kwargs))
        self._template: _engine.ChatTemplate | None = None
        self._names: dict[int, str] = {}  # of requests whose callers chose them
        # A program may end with an engine: its threads end before the interpreter does.
        self._finalizer = weakref.finalize(self, self._engine.close)

    def add_request(self, *request: Any, **kwargs: Any) -> str:
        """add_request(prompt, params=None), or vLLM's add_request(request_id, prompt, params).

        Queues a request and returns its id.
        """
        if len(request) > 2 or "request_id" in kwargs:
            return self._add(*request, **kwargs)
        return self._add(None, *request, **kwargs)

    def _add(
        self, request_id: str | None, prompt: Prompt, params: SamplingParams | None = None
    ) -> str:
        number = self._engine.add_request(prompt, params or self.get_default_sampling_params())
        if request_id is not None:
            self._names[number] = request_id
        return request_id or str(number)

    def step(self) -> list[RequestOutput]:
        """Runs one step and returns the requests that gained tokens or ended in it."""
        outputs = self._engine.step()
        if self._names:
            for output in outputs:
                number = int(output.request_id)
                output.request_id = self._names.get(number, output.request_id)
                if output.finished:
                    self._names.pop(number, None)
        return outputs

    def abort_request(self, request_id: "str | Iterable[str]") -> None:
        """Ends requests now; the next step tells, with finish_reason "abort"."""
        asked = {request_id} if isinstance(request_id, str) else set(request_id)
        numbers = [number for number, name in self._names.items() if name in asked]
        numbers += [int(name) for name in asked if name.isdecimal() and int(name) not in self._names]
        for number in numbers:
            self._engine.abort_request(number)

    def is_finished(self) -> bool:
        """Whether all requests have ended and their outputs were taken."""
        return self._engine.is_finished()

    def has_unfinished_requests(self) -> bool:
        return not self.is_finished()

    @property
    def last_step(self) -> StepStats:
        """What the last step did."""
        return self._engine.last_step()

    @property
    def info(self) -> dict[str, Any]:
        """What the engine is and can take."""
        return self._engine.info()

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own (generation_config.json) over SamplingParams' defaults."""
        return self._engine.default_sampling_params()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Text to token ids."""
        return self._engine.encode(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Token ids to text."""
        return self._engine.decode(token_ids, skip_special_tokens)

    def exit(self) -> None:
        """Gives the model's memory back; later calls raise RuntimeError."""
        self._engine.close()


class LLM(LLMEngine):
    """A model that generates for lists of prompts.

    model: a Hugging Face model folder or a GGUF file. What LLMEngine does, it does too. Keywords:
    """

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[RequestOutput]:
        """Generates for all prompts at once; outputs are in their order.

        prompts: texts, lists or arrays of token ids, {"prompt": text} or {"prompt_token_ids": ids};
        or one of these alone. sampling_params: one for all, one each, or the model's own. use_tqdm:
        whether to show progress, or what to show it with instead of tqdm.

        Raises what is wrong with a prompt or its parameters before any work. Ctrl-C ends it behind
        the running step, and the engine is free for the next call.
        """
        asked = as_list(prompts)
        params = sampling_params or self.get_default_sampling_params()
        if not use_tqdm:
            return self._engine.generate(asked, params, None)
        from nanovllm._progress import Progress

        with Progress(len(asked), use_tqdm) as progress:
            return self._engine.generate(asked, params, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers a conversation, or each of several: lists of {"role": ..., "content": ...}.

        The prompt is what the model's chat template, or chat_template, makes of them;
        chat_template_kwargs are its variables, enable_thinking for instance.
        """
        template = self._template
        if chat_template is not None:
            template = _engine.ChatTemplate.from_source(chat_template, self.model)
        elif template is None:
            template = self._template = _engine.ChatTemplate.load(self.model)
        texts = [
            template.render(conversation, tools, add_generation_prompt, chat_template_kwargs or {})
            for conversation in conversations(messages)
        ]
        # The template writes the special tokens itself.
        ids = [self.encode(text, add_special_tokens=False) for text in texts]
        outputs = self.generate(ids, sampling_params, use_tqdm)
        for output, text in zip(outputs, texts):
            output.prompt = text
        return outputs

    @property
    def llm_engine(self) -> LLMEngine:
        return self


describe_parameters(SamplingParams)
describe_engine(LLMEngine)
describe_engine(LLM)
