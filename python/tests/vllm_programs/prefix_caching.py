"""The same questions about one long text, without the prefix cache and with it, and after it was reset."""
import sys

from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

PREFIX = "Once upon a time there was a little girl who had a dog and a cat. " * 40
PROMPTS = [PREFIX + end for end in ("The girl", "The dog", "The cat", "One day")]
PARAMS = SamplingParams(temperature=0.0, max_tokens=8)


def main() -> None:
    without = LLM(model=sys.argv[1], enable_prefix_caching=False, gpu_memory_utilization=0.4)
    expected = [output.outputs[0].text for output in without.generate(PROMPTS, PARAMS)]
    del without
    cleanup_dist_env_and_memory()

    llm = LLM(model=sys.argv[1], enable_prefix_caching=True, gpu_memory_utilization=0.4)
    llm.generate(PROMPTS[0], PARAMS)
    outputs = llm.generate(PROMPTS, PARAMS)
    assert [output.outputs[0].text for output in outputs] == expected
    assert all(output.num_cached_tokens > 0 for output in outputs)
    assert llm.reset_prefix_cache()
    (output,) = llm.generate(PROMPTS[0], PARAMS)
    assert output.num_cached_tokens == 0 and output.outputs[0].text == expected[0]
    print("the same:", expected)


if __name__ == "__main__":
    main()
