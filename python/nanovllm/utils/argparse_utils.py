"""The parser of vLLM's programs."""
from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any


class FlexibleArgumentParser(argparse.ArgumentParser):
    """Takes --max_model_len for --max-model-len."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args([re.sub(r"^--[^=]+", _dashed, word) for word in words], namespace)


def _dashed(flag: re.Match[str]) -> str:
    return flag[0].replace("_", "-")
