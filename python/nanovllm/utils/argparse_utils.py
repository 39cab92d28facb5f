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
        dashed = [re.sub(r"^--[^=]+", lambda flag: flag[0].replace("_", "-"), word) for word in words]
        return super().parse_known_args(dashed, namespace)
