"""Tokens as they come, from an engine of an asyncio program."""
import asyncio
import sys

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM


async def stream(engine: AsyncLLM, prompt: str, request_id: str) -> str:
    params = SamplingParams(max_tokens=20, temperature=0.8, top_p=0.95, seed=42, output_kind=RequestOutputKind.DELTA)
    pieces: list[str] = []
    finished = False
    async for output in engine.generate(request_id=request_id, prompt=prompt, sampling_params=params):
        pieces += [completion.text for completion in output.outputs]
        finished = output.finished
        if finished:
            break
    assert finished
    return "".join(pieces)


async def main() -> None:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=sys.argv[1], enforce_eager=True, enable_log_requests=False))
    try:
        prompts = ["The future of", "In a forest far away", "The key to"]
        texts = [await stream(engine, prompt, f"one-{i}") for i, prompt in enumerate(prompts)]
        assert all(texts) and len(set(texts)) == 3
        assert await engine.reset_prefix_cache()
        again = await asyncio.gather(*(stream(engine, prompt, f"all-{i}") for i, prompt in enumerate(prompts)))
        assert again == texts
        print(texts)
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
