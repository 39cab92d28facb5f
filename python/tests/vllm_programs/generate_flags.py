"""All of an engine's arguments as flags, in a group of a parser, beside the program's own."""
from vllm import LLM, EngineArgs
from vllm.utils import FlexibleArgumentParser


def main() -> None:
    parser = FlexibleArgumentParser(description="generate")
    engine = parser.add_argument_group("Engine arguments")
    EngineArgs.add_cli_args(engine)
    engine.set_defaults(model="nowhere/nothing")
    own = parser.add_argument_group("Sampling parameters")
    own.add_argument("--max-tokens", type=int)
    own.add_argument("--temperature", type=float)
    args = vars(parser.parse_args())
    max_tokens, temperature = args.pop("max_tokens"), args.pop("temperature")
    llm = LLM(**args)
    params = llm.get_default_sampling_params()
    if max_tokens is not None:
        params.max_tokens = max_tokens
    if temperature is not None:
        params.temperature = temperature
    for output in llm.generate(["Once upon a time", "The little dog"], params):
        assert len(output.outputs[0].token_ids) == 5
        print(f"{output.prompt!r}: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
