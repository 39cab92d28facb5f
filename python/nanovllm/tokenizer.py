"""The tokenizer of a GGUF file, with what programs ask most of one of the package transformers."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanovllm._model import Model
    from nanovllm._prompts import Message


class Tokenizer:
    """What LLM.get_tokenizer() gives for a GGUF file. Names and defaults are those of transformers."""

    def __init__(self, model: Model[Any]) -> None:
        self._model = model

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text, add_special_tokens)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._model.encode(text, add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._model.decode(ids, skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        *,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str | list[int]:
        """A conversation as text, or with tokenize as token ids. kwargs are the template's variables."""
        prompt = self._model.render_chat(
            conversation, add_generation_prompt, tools, chat_template, kwargs, continue_final_message
        )
        rendered: str | list[int] = prompt["prompt_token_ids" if tokenize else "prompt"]
        return rendered

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the tokenizer of a GGUF file has no {name!r}, but encode, decode and apply_chat_template; "
            "AutoTokenizer of transformers has more, for the folder that the file was made of",
            name=name,
            obj=self,
        )
