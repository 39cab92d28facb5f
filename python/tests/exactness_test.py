"""What Python gets is what the C++ binary gives, bit by bit."""
import asyncio

import nanovllm
import numpy
import pytest
from nanovllm import SamplingParams

TEXTS = ["Once upon a time", "The little dog", "Lily said: \"Ünïcödé 🐶\"", "One day, a bird"]
PARAMS = [
    {"temperature": 0, "max_tokens": 40},
    {"temperature": 0.8, "top_p": 0.9, "seed": 7, "max_tokens": 30},
    {"temperature": 1.2, "top_k": 20, "min_p": 0.05, "seed": -2**63, "logprobs": 3},
    {"seed": 5, "n": 3, "max_tokens": 12, "presence_penalty": 0.5, "frequency_penalty": -0.5},
    {"temperature": 0, "stop": ["was", "."], "include_stop_str_in_output": True},
    {"temperature": 0, "bad_words": [" girl", "little boy"], "logit_bias": {"13": -100, "20": 1.5}},
    {"temperature": 0, "prompt_logprobs": 2, "logprobs": 0, "max_tokens": 5},
    {"temperature": 0, "max_tokens": None, "stop_token_ids": [13], "repetition_penalty": 1.3},
    {"temperature": 0, "min_tokens": 20, "max_tokens": 25, "ignore_eos": True},
]


def requests(**defaults):
    """With what the binary would else take from the model's generation_config.json."""
    defaults = {"temperature": 1.0, "top_p": 1.0, **defaults}
    return [{"prompt": t, "sampling_params": defaults | p} for p in PARAMS for t in TEXTS]


def as_params(fields):
    fields = dict(fields)
    if "logit_bias" in fields:
        fields["logit_bias"] = {int(token): bias for token, bias in fields["logit_bias"].items()}
    return SamplingParams(**fields)


def candidates(positions):
    return positions and [
        position
        and {
            str(token): {"logprob": c.logprob, "rank": c.rank, "decoded_token": c.decoded_token}
            for token, c in position.items()
        }
        for position in positions
    ]


def completion_fields(completion):
    fields = {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "logprobs": candidates(completion.logprobs),
    }
    return {name: value for name, value in fields.items() if value is not None}


def expect_equal(output, line):
    expected = line.get("outputs", [line])
    assert len(output.outputs) == len(expected)
    for completion, fields in zip(output.outputs, expected):
        names = ("text", "token_ids", "finish_reason", "stop_reason", "logprobs")
        assert completion_fields(completion) == {n: fields[n] for n in names if n in fields}
    assert len(output.prompt_token_ids) == line["num_prompt_tokens"]
    assert candidates(output.prompt_logprobs) == line.get("prompt_logprobs")


def test_generate_gives_what_the_binary_gives(run_binary, llm):
    params = [as_params(request["sampling_params"]) for request in requests()]
    outputs = llm.generate([r["prompt"] for r in requests()], params, use_tqdm=False)
    lines = run_binary(requests())
    assert len(outputs) == len(lines) == len(requests())
    for output, line, request in zip(outputs, lines, requests()):
        expect_equal(output, line)
        assert output.prompt == request["prompt"] and output.finished


def test_requests_without_a_seed_draw_alike_too(run_binary, model):
    prompts = [{"prompt": f"Day {i}"} for i in range(20)]
    outputs = nanovllm.LLM(model).generate(prompts, use_tqdm=False)
    for output, line in zip(outputs, run_binary(prompts)):
        expect_equal(output, line)


def test_steps_give_what_generate_gives(run_binary, model):
    engine = nanovllm.LLMEngine(model)
    ids = [engine.add_request(r["prompt"], as_params(r["sampling_params"])) for r in requests()]
    last = {}
    while not engine.is_finished():
        last |= {output.request_id: output for output in engine.step()}
    for request_id, line in zip(ids, run_binary(requests()), strict=True):
        expect_equal(last[request_id], line)


@pytest.mark.parametrize("more", [{"method": "suffix"}, {"method": "draft_model", "num_speculative_tokens": 3}])
def test_drafts_change_nothing(run_binary, model, more):
    if more["method"] == "draft_model":
        more = more | {"model": str(model)}
    engine = nanovllm.LLMEngine(model, speculative_config=more, max_num_seqs=1)
    ids = [engine.add_request(r["prompt"], as_params(r["sampling_params"])) for r in 2 * requests()]
    last, steps = {}, []
    while not engine.is_finished():
        last |= {output.request_id: output for output in engine.step()}
        steps.append(engine.last_step)
    for request_id, line in zip(ids, 2 * run_binary(requests()), strict=True):
        expect_equal(last[request_id], line)
    assert sum(step.num_draft_tokens for step in steps) >= sum(sum(step.num_accepted_per_pos) for step in steps) > 0
    with pytest.raises(ValueError, match="method must be suffix, ngram or draft_model"):
        nanovllm.LLMEngine(model, speculative_config={"method": "medusa"})


@pytest.mark.parametrize("kind", list(nanovllm.RequestOutputKind))
def test_async_gives_what_the_binary_gives(run_binary, model, kind):
    async def collect(llm, request):
        params = as_params(request["sampling_params"])
        params.output_kind = kind
        outputs = [output async for output in llm.generate(request["prompt"], params)]
        total = outputs[-1]
        if kind == nanovllm.RequestOutputKind.DELTA:
            for i, completion in enumerate(total.outputs):
                parts = [output.outputs[i] for output in outputs]
                completion.text = "".join(part.text for part in parts)
                completion.token_ids = sum((part.token_ids for part in parts), [])
                if completion.logprobs is not None or any(part.logprobs for part in parts):
                    completion.logprobs = sum((part.logprobs or [] for part in parts), [])
            total.prompt_logprobs = outputs[0].prompt_logprobs
        elif kind == nanovllm.RequestOutputKind.FINAL_ONLY:
            assert len(outputs) == 1
        else:
            lengths = [len(output.outputs[0].token_ids) for output in outputs]
            assert lengths == sorted(lengths)
        return total

    async def main():
        llm = nanovllm.AsyncLLM(model)
        return await asyncio.gather(*(collect(llm, request) for request in asked))

    asked = requests(seed=1)
    for output, line in zip(asyncio.run(main()), run_binary(asked), strict=True):
        expect_equal(output, line)


def test_prompts_come_in_every_form(llm):
    params = SamplingParams(temperature=0, max_tokens=8)
    text = "Once upon a time"
    ids = llm.encode(text)
    expected = llm.generate(text, params, use_tqdm=False)[0]
    one = [text, ids, tuple(ids), numpy.array(ids), numpy.array(ids, dtype=numpy.uint16)]
    one += [numpy.array(ids * 2)[: len(ids)], {"prompt": text}, {"prompt_token_ids": ids}]
    one += [{"prompt": text, "prompt_token_ids": numpy.array(ids)}, [numpy.int64(i) for i in ids]]
    many = [*one, one, [numpy.array(ids), text], numpy.array([ids, ids]), (text for _ in range(3))]
    for prompts in many:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert outputs
        assert all(output.outputs == expected.outputs for output in outputs)
        assert all(output.prompt_token_ids == ids for output in outputs)
    assert llm.decode(ids) == llm.decode(numpy.array(ids)) == text


def test_chat_is_what_transformers_makes_of_the_messages(llm, model):
    transformers = pytest.importorskip("transformers", reason="no transformers here")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    conversations = [
        [{"role": "user", "content": "Tell me a story."}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}],
    ]
    prompts = [
        tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True)
        for c in conversations
    ]
    params = SamplingParams(temperature=0, max_tokens=10)
    outputs = llm.chat(conversations, params, use_tqdm=False)
    for output, prompt in zip(outputs, prompts, strict=True):
        assert output.prompt == prompt
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        assert output.prompt_token_ids == ids
        assert output["text"] == llm.generate([ids], params, use_tqdm=False)[0]["text"]
        assert output["text"] == tokenizer.decode(output["token_ids"], skip_special_tokens=True)
    turn = [*conversations[0], {"role": "assistant", "content": "Once upon a  "}]
    continued = tokenizer.apply_chat_template(turn, tokenize=False, continue_final_message=True)
    assert llm.render_chat(turn, add_generation_prompt=False, continue_final_message=True)["prompt"] == continued
    alone = llm.chat(conversations[0], params, use_tqdm=False)
    assert [output.outputs for output in alone] == [outputs[0].outputs]
    template = "{% for m in messages %}{{ m.content }}{{ extra }}{% endfor %}"
    (own,) = llm.chat(
        conversations[0], params, False, chat_template=template, chat_template_kwargs={"extra": "!"}
    )
    assert own.prompt == "Tell me a story.!"
