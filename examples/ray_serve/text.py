"""A model behind Ray Serve, its text streamed as it is written. In this folder, with nanovllm and ray[serve] installed:

    serve run text:app model=Qwen/Qwen3-0.6B
    curl -N localhost:8000 -d '{"prompt": "Once upon a time", "max_tokens": 100}'

The fields beside prompt are those of nanovllm.SamplingParams. Ray Serve starts, replaces and counts the replicas, each an actor
with an engine, and spreads requests over them; for OpenAI's API take `nanovllm serve` itself (docs/scale.md).
"""
from collections.abc import AsyncIterator

from nanovllm import AsyncLLM, RequestOutputKind, SamplingParams
from ray import serve
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse


# A GPU each: ray_actor_options={"num_gpus": 1}. More requests than an engine computes at once wait in it.
@serve.deployment(ray_actor_options={"num_cpus": 1}, max_ongoing_requests=512, num_replicas=1)
class Text:
    def __init__(self, model: str) -> None:
        self._llm = AsyncLLM(model)

    async def __call__(self, request: Request) -> Response:
        try:
            asked = await request.json()
            prompt = asked.pop("prompt")
            params = SamplingParams(**asked, output_kind=RequestOutputKind.DELTA)
        except KeyError:
            return PlainTextResponse("The request has no prompt.\n", status_code=400)
        except (AttributeError, TypeError, ValueError) as error:
            return PlainTextResponse(f"{error}\n", status_code=400)

        async def texts() -> AsyncIterator[str]:
            async for output in self._llm.generate(prompt, params):  # who goes away ends it
                yield output.outputs[0].text

        return StreamingResponse(texts(), media_type="text/plain")


def app(arguments: dict[str, str]) -> serve.Application:
    return Text.bind(arguments["model"])
