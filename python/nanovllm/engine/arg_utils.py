"""The arguments of an engine as an object and as flags, as vLLM's programs have them."""
from __future__ import annotations

import argparse
import dataclasses
import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from nanovllm import _engine
from nanovllm._arguments import checked, engine_defaults

if TYPE_CHECKING:
    from typing_extensions import Self

Parser = TypeVar("Parser", bound=argparse._ActionsContainer)

_MODEL = "Qwen/Qwen3-0.6B"  # vLLM's too
_SHORT = {
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "data_parallel_size": "-dp",
    "quantization": "-q",
}
_ONLY_VLLMS = "as in vLLM; other values than its default are explained"


class EngineArgs:
    """The keywords of LLM, LLMEngine and AsyncLLM, those that only vLLM has too, as a dataclass: LLM(**vars(args)),
    LLM(**dataclasses.asdict(args)), or LLMEngine.from_engine_args(args)."""

    def __init__(self, model: str | os.PathLike[str] = _MODEL, **kwargs: Any) -> None:
        checked(type(self).__name__, model, kwargs)
        vars(self).update({"model": model, **engine_defaults(), **kwargs})

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

        def __getattr__(self, name: str) -> Any: ...

    def __repr__(self) -> str:
        defaults = engine_defaults()
        shown = {name: value for name, value in vars(self).items() if value != defaults.get(name)}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @staticmethod
    def add_cli_args(parser: Parser) -> Parser:
        """Adds a flag for each to a parser, or to a group of one."""
        helps = {name: text for name, _, text in _engine.config_fields()}
        parser.add_argument("--model", default=_MODEL, help="a folder, a GGUF file or a name of the hub")
        for name, default in engine_defaults().items():
            _add_flag(parser, name, default, helps.get(name, _ONLY_VLLMS))
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Of what was parsed, those that are an engine's."""
        names = {"model", *engine_defaults()}
        return cls(**{name: value for name, value in vars(args).items() if name in names})


def _make_dataclass() -> None:
    defaults = {"model": _MODEL, **engine_defaults()}
    EngineArgs.__annotations__ = dict.fromkeys(defaults, Any)
    for name, default in defaults.items():
        setattr(EngineArgs, name, default)
    dataclasses.dataclass(init=False, repr=False)(EngineArgs)  # its own say more


_make_dataclass()


class AsyncEngineArgs(EngineArgs):
    @staticmethod
    def add_cli_args(parser: Parser, async_args_only: bool = False) -> Parser:
        return parser if async_args_only else EngineArgs.add_cli_args(parser)


def _add_flag(parser: argparse._ActionsContainer, name: str, default: Any, text: str) -> None:
    flags = [f"--{name.replace('_', '-')}", *filter(None, [_SHORT.get(name)])]
    text = text.replace("%", "%%")
    if isinstance(default, bool):
        parser.add_argument(*flags, action=argparse.BooleanOptionalAction, default=default, help=text)
        return
    parser.add_argument(*flags, type=_KINDS.get(name) or _KINDS.get(type(default), str), default=default, help=text)


def _count(text: str, is_bytes: bool = False) -> int:
    """As on the command line: 8k is 8,000, and 8K is 8,192."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    number = _engine.parse_quantity(text, is_bytes)
    if number is None:
        raise argparse.ArgumentTypeError(f"must be an integer such as 8192, 8k (8,000) or 8K (8,192), got {text}")
    return int(number)


def _length(text: str) -> int:
    return -1 if text == "auto" else _count(text)


_KINDS: dict[Any, Any] = {
    int: _count,
    float: float,
    "max_model_len": _length,
    "kv_cache_memory": partial(_count, is_bytes=True),
    "state_cache_memory": partial(_count, is_bytes=True),
}
