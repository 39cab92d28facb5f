"""Requests that are ended while they run, several with one call."""
import argparse
import asyncio
import sys

from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from vllm.utils import FlexibleArgumentParser, random_uuid


async def main() -> None:
    parser: argparse.ArgumentParser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    args = parser.parse_args(["--model", sys.argv[1], "--max_num_seqs", "8", "--scheduling-policy", "priority"])
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs.from_cli_args(args))
    names = [random_uuid() for _ in range(3)]

    async def last(name: str, max_tokens: int) -> str | None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        async for output in engine.generate("Once upon a time", params, name, priority=1):
            reason = output.outputs[0].finish_reason
            begun.add(name)
        return reason

    begun: set[str] = set()
    long = [asyncio.create_task(last(name, 1500)) for name in names]
    while len(begun) < 3:
        await asyncio.sleep(0.01)
    await engine.abort(names[:2])
    await engine.abort(names[2])
    assert await asyncio.gather(*long) == ["abort"] * 3
    assert await last("another", 3) == "length"
    engine.shutdown()
    print("aborted", len(names))


if __name__ == "__main__":
    asyncio.run(main())
