"""What vLLM's programs import from vllm.utils."""
import uuid

from nanovllm.utils.argparse_utils import FlexibleArgumentParser
from nanovllm.utils.network_utils import get_open_port

__all__ = ["FlexibleArgumentParser", "get_open_port", "random_uuid"]


def random_uuid() -> str:
    return uuid.uuid4().hex
