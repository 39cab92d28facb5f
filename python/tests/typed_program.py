"""What users write, for mypy: it is checked, and never run."""
import dataclasses
from typing import assert_type

from nanovllm import LLM, AsyncEngineArgs, AsyncLLM, EngineArgs, LLMEngine, RequestOutput, RequestOutputKind, SamplingParams, StructuredOutputsParams, TokensPrompt
from nanovllm.utils.argparse_utils import FlexibleArgumentParser


def batch() -> None:
    llm = LLM("models/demo", max_model_len=512, enable_prefix_caching=False)
    params = SamplingParams(temperature=0.8, stop=["."], max_tokens=None, seed=1)
    outputs = llm.generate(["a", [1, 2], {"prompt": "b"}], [params] * 3, use_tqdm=False)
    assert_type(outputs, list[RequestOutput])
    assert_type(outputs[0].outputs[0].token_ids, list[int])
    llm.chat([{"role": "user", "content": "hi"}], params)
    params.stop = "x"
    params.logit_bias = {"3": 1.0}
    params.bad_words = params.stop_token_ids = None
    assert_type(params.stop, list[str])
    LLM("models/demo", max_model_len=None, seed=None, dtype=None)
    params.structured_outputs = StructuredOutputsParams(json={"type": "object"}, disable_any_whitespace=True)
    assert_type(params.structured_outputs.json, str | None)
    SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a", "b"]))
    StructuredOutputsParams(lark="a")  # type: ignore[call-arg]
    SamplingParams(temprature=1)  # type: ignore[call-arg]
    LLM("models/demo", max_len=1)  # type: ignore[call-arg]


def flags() -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    assert_type(parser, FlexibleArgumentParser)
    args = EngineArgs.from_cli_args(parser.parse_args())
    LLM(**dataclasses.asdict(args))
    LLM(**vars(args))
    assert_type(LLM.from_engine_args(args), LLM)
    assert_type(AsyncLLM.from_engine_args(AsyncEngineArgs("models/demo")), AsyncLLM)
    LLM("models/demo").generate(TokensPrompt(prompt_token_ids=[1]), SamplingParams(allowed_token_ids=[3]), priority=1)


async def stream() -> None:
    params = SamplingParams(output_kind=RequestOutputKind.DELTA)
    async for output in AsyncLLM("models/demo").generate("a", params):
        assert_type(output, RequestOutput)
    await AsyncLLM("models/demo").generate("a").aclose()


def steps(engine: LLMEngine) -> None:
    engine.add_request("a", SamplingParams())
    while not engine.is_finished():
        assert_type(engine.step(), list[RequestOutput])
