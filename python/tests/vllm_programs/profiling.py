"""What an engine does between two moments, as a file."""
import os
import sys

from vllm import LLM, SamplingParams


def main() -> None:
    llm = LLM(model=sys.argv[1], tensor_parallel_size=1)
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=8)
    llm.generate(["Not in the trace"], params)
    llm.start_profile()
    outputs = llm.generate(["Hello, my name is", "The future of"], params)
    llm.stop_profile()
    llm.generate(["Not in the trace either"], params)
    for output in outputs:
        print(f"{output.prompt!r}: {output.outputs[0].text!r}")
    print(os.listdir("."))


if __name__ == "__main__":
    main()
