"""One of a few tokens as the answer, with how likely each was."""
import math
import sys

from vllm import LLM, SamplingParams, TextPrompt, TokensPrompt
from vllm.entrypoints.llm import LLM as TheSame


def main() -> None:
    llm = LLM(model=sys.argv[1])
    assert TheSame is LLM
    (text,) = llm.generate(TextPrompt(prompt="The dog is"), SamplingParams(max_tokens=1))
    prompt = TokensPrompt(prompt_token_ids=text.prompt_token_ids)
    labels = [40, 7, 300]
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20, allowed_token_ids=labels)
    (output,) = llm.generate(prompt, params)
    (answer,) = output.outputs[0].token_ids
    assert answer in labels
    chances = {token: math.exp(entry.logprob) for token, entry in output.outputs[0].logprobs[0].items()}
    assert all(chances[answer] >= chances.get(label, 0) for label in labels)
    outputs = llm.generate(prompt, SamplingParams(n=30, max_tokens=4, ignore_eos=True, seed=1, allowed_token_ids=labels))
    drawn = {token for completion in outputs[0].outputs for token in completion.token_ids}
    assert drawn <= set(labels) and len(drawn) > 1
    print(answer, chances[answer], drawn)


if __name__ == "__main__":
    main()
