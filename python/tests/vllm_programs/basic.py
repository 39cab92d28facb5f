"""Texts for a list of prompts, and what vLLM's programs write where they ask for nothing."""
import os
import sys

from vllm import LLM, RequestOutput, SamplingParams

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_BATCH_INVARIANT"] = "1"

PROMPTS = ["Once upon a time", "The little dog", "A girl named"]


def texts(llm: LLM) -> list[str]:
    params = SamplingParams(
        temperature=0.8, top_p=0.95, max_tokens=12, seed=3, detokenize=True, structured_outputs=None,
        spaces_between_special_tokens=True, flat_logprobs=False, allowed_token_ids=None,
    )
    outputs: list[RequestOutput] = llm.generate(PROMPTS, params, use_tqdm=False, lora_request=None)
    assert [output.prompt for output in outputs] == PROMPTS
    return [output.outputs[0].text for output in outputs]


def main() -> None:
    model = sys.argv[1]
    llm = LLM(
        model=model, tokenizer=model, tokenizer_mode="auto", skip_tokenizer_init=False, trust_remote_code=False, dtype="auto",
        quantization=None, revision=None, seed=0, tensor_parallel_size=1, max_model_len=None, enforce_eager=True,
        enable_chunked_prefill=True, disable_log_stats=False, kv_cache_dtype="auto", load_format="auto", max_logprobs=20,
        hf_overrides=None, profiler_config=None, speculative_config=None, enable_lora=False, disable_custom_all_reduce=False,
    )
    first = texts(llm)
    assert len(set(first)) == 3 and all(first)
    assert texts(llm) == first
    for text in first:
        print(repr(text))


if __name__ == "__main__":
    main()
