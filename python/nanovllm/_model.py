"""What LLM, LLMEngine and AsyncLLM have in common: a loaded model with its texts."""
from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nanovllm import _engine
from nanovllm._arguments import check_call, checked, missing_attribute, with_our_dtype
from nanovllm._engine import SamplingParams
from nanovllm._progress import Pull
from nanovllm._prompts import Message, as_message
from nanovllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

    from nanovllm.engine.arg_utils import EngineArgs

Core = TypeVar("Core", _engine.Engine, _engine.Loop)


class Model(Generic[Core]):
    def __init__(
        self, core: type[Core], model: str | os.PathLike[str], kwargs: Mapping[str, Any]
    ) -> None:
        arguments = with_our_dtype(checked(type(self).__name__, model, kwargs))
        self._trace_file: str = arguments.get("trace_file") or ""
        self._core: Core = core()
        self._template: _engine.ChatTemplate | None = None
        # A program may end with an engine, or while it loads: its threads end before the interpreter does.
        weakref.finalize(self, self._core.close)
        with Pull() as pull:
            self.model = self._core.load(os.fsdecode(model), arguments, pull)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, usage_context: object = None, **kwargs: Any) -> Self:
        """One with these arguments. usage_context, vLLM's, is not looked at."""
        check_call("from_engine_args", kwargs)
        return cls(**vars(engine_args))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    def _profile(self, prefix: str | None) -> str:
        """The file of start_profile()."""
        return f"{prefix}.trace.json" if prefix else self._trace_file or "nanovllm.trace.json"

    @property
    def info(self) -> dict[str, Any]:
        """What the engine is and can take."""
        return self._core.info()

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own (generation_config.json) over SamplingParams' defaults."""
        return self._core.default_sampling_params()

    def _checked(self, params: object) -> SamplingParams:
        if params is None:
            return self.get_default_sampling_params()
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
        return params

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Text to token ids."""
        return self._core.encode(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Token ids to text."""
        return self._core.decode(token_ids, skip_special_tokens)

    def get_tokenizer(self) -> Any:
        """The tokenizer of the package transformers for a model's folder, as vLLM gives it; for a
        GGUF file a nanovllm.tokenizer.Tokenizer."""
        if os.path.isfile(self.model):
            return Tokenizer(self)
        try:
            from transformers import AutoTokenizer
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "get_tokenizer() gives the tokenizer of the package transformers, which is not here; "
                "encode(), decode() and render_chat() need nothing.",
                name=error.name,
            ) from None
        return AutoTokenizer.from_pretrained(self.model)

    def render_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> dict[str, Any]:
        """A conversation as a prompt, by the model's chat template or another one. A content may be a
        text, or a list of {"type": "text", "text": ...}. With continue_final_message, and without
        add_generation_prompt, it ends with the last message, which the model goes on with."""
        template = self._template
        if chat_template is not None:
            template = _engine.ChatTemplate.from_source(chat_template, self.model)
        elif template is None:
            template = self._template = _engine.ChatTemplate.load(self.model)
        text, add_special_tokens = template.render(
            [as_message(m) for m in messages], tools, chat_template_kwargs or {}, add_generation_prompt, continue_final_message
        )
        return {"prompt": text, "prompt_token_ids": self.encode(text, add_special_tokens)}


weakref.finalize(Model, int)  # whoever registers behind the first finalizer is called before all of them
atexit.register(_engine.end_calls)
