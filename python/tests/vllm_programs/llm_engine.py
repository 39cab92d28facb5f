"""An engine that is stepped by hand, with requests of all kinds that come one after the other."""
from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(description="steps"))
    engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(parser.parse_args()))
    waiting = [
        ("A robot and a girl", SamplingParams(temperature=0.0, logprobs=1, prompt_logprobs=1, max_tokens=6)),
        ("To be or not", SamplingParams(temperature=0.8, top_k=5, presence_penalty=0.2, max_tokens=6)),
        ("What is it?", SamplingParams(n=2, temperature=0.8, top_p=0.95, frequency_penalty=0.1, max_tokens=6)),
    ]
    ended: dict[str, RequestOutput] = {}
    number = 0
    while waiting or engine.has_unfinished_requests():
        if waiting:
            prompt, params = waiting.pop(0)
            engine.add_request(str(number), prompt, params, priority=0)
            number += 1
        if number == 2:
            engine.reset_prefix_cache(reset_running_requests=True)
        for output in engine.step():
            if output.finished:
                ended[output.request_id] = output
    assert sorted(ended) == ["0", "1", "2"]
    assert [len(ended[name].outputs) for name in "012"] == [1, 1, 2]
    logprobs = ended["0"].outputs[0].logprobs
    assert logprobs is not None and len(logprobs) == len(ended["0"].outputs[0].token_ids)
    assert ended["0"].prompt_logprobs[0] is None and len(ended["0"].prompt_logprobs) == len(ended["0"].prompt_token_ids)
    for output in ended.values():
        print(output)


if __name__ == "__main__":
    main()
