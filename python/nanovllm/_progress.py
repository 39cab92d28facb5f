"""The bars of generate() and of pulls."""
import time
from collections.abc import Callable
from typing import Any


class _Bar:
    _bar: Any = None

    def __enter__(self: Any) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


class Progress(_Bar):
    """Called a few times a second with totals of finished requests and computed tokens."""

    def __init__(self, num_prompts: int, bar: bool | Callable[..., Any]) -> None:
        self._bar = (bar if callable(bar) else _tqdm())(total=num_prompts, desc="Generating", dynamic_ncols=True)
        self._start = time.perf_counter()

    def __call__(self, num_finished: int, num_prefilled: int, num_decoded: int) -> None:
        seconds = max(time.perf_counter() - self._start, 1e-9)
        prefill, decode = (f"{n / seconds:.0f}tok/s" for n in (num_prefilled, num_decoded))
        self._bar.set_postfix({"Prefill": prefill, "Decode": decode}, refresh=False)
        self._bar.update(num_finished - self._bar.n)


class Pull(_Bar):
    """Called with the bytes of a model that are there, all of them, and what is waited for; a bar, once some are missing."""

    def __call__(self, num_bytes: int, total_bytes: int, note: str) -> None:
        if self._bar is None:
            self._bar = _tqdm()(desc="Pulling", unit="B", unit_scale=True)
        self._bar.total = total_bytes or None
        self._bar.set_postfix_str(note)
        self._bar.update(num_bytes - self._bar.n)


def _tqdm() -> Callable[..., Any]:
    from tqdm.auto import tqdm

    return tqdm  # type: ignore[no-any-return]
