"""AsyncLLM: many callers, and those that go away."""
import asyncio
import gc
import json
import subprocess
import sys
import time
import weakref

import pytest
from nanovllm import AsyncLLM, RequestOutputKind, SamplingParams, StructuredOutputsParams

LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=2)


async def last_of(stream):
    async for output in stream:
        last = output
    return last


@pytest.fixture(scope="module")
def shared(model):
    llm = AsyncLLM(model)
    yield llm
    llm.shutdown()


def test_two_thousand_callers_at_once(shared):
    async def main():
        streams = (shared.generate("Once", SHORT) for _ in range(2000))
        outputs = await asyncio.gather(*map(last_of, streams))
        assert len({o.request_id for o in outputs}) == 2000
        assert all(o.finished and o.outputs == outputs[0].outputs for o in outputs)

    asyncio.run(main())


def test_outputs_are_bound(shared):
    async def main():
        choices = [StructuredOutputsParams(choice=[f"label {i}"]) for i in range(20)]
        streams = (shared.generate("Once", SamplingParams(structured_outputs=choice, max_tokens=50)) for choice in choices)
        outputs = await asyncio.gather(*map(last_of, streams))
        assert [output.outputs[0].text for output in outputs] == [f"label {i}" for i in range(20)]
        with pytest.raises(ValueError, match=r"\(at position 0\)"):
            await last_of(shared.generate("Once", SamplingParams(structured_outputs=StructuredOutputsParams(regex="("))))

    asyncio.run(main())


def test_the_event_loop_goes_on_while_a_grammar_is_compiled(shared):
    members = {f"p{i}": {"type": "integer"} for i in range(5000)}
    schema = StructuredOutputsParams(json=json.dumps({"type": "object", "properties": members}))

    async def main():
        started = time.monotonic()
        task = asyncio.create_task(last_of(shared.generate("Once", SamplingParams(structured_outputs=schema, max_tokens=5))))
        ticks = [started]
        while not task.done():
            await asyncio.sleep(0.001)
            ticks.append(time.monotonic())
        assert (await task).outputs[0].text.startswith("{")
        longest = max(after - before for before, after in zip(ticks, ticks[1:]))
        assert longest < (ticks[-1] - started) / 2, "the schema was compiled on the event loop's thread"

    asyncio.run(main())


def test_cancellation_aborts(model):
    llm = AsyncLLM(model, max_num_seqs=1)  # one waits for the other

    async def main():
        long = (await last_of(llm.generate("Once", LONG))).metrics.time_to_finish
        stream = llm.generate("Once", LONG)
        await anext(stream)
        task = asyncio.create_task(last_of(stream))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await last_of(llm.generate("Once", SHORT))).metrics.time_to_finish < long / 2
        async for _ in llm.generate("Once", LONG):
            break  # the event loop closes the generator when it is collected
        await asyncio.sleep(0.01)
        assert (await last_of(llm.generate("Once", SHORT))).metrics.time_to_finish < long / 2
        assert not llm._news and not llm._numbers

    asyncio.run(main())
    llm.shutdown()


def test_who_forgets_it_has_its_memory_back(model):
    async def main():
        llm = AsyncLLM(model)
        await last_of(llm.generate("Once", SHORT))
        gone = weakref.ref(llm)
        del llm
        gc.collect()
        assert gone() is None
        other = AsyncLLM(model)  # whose file may have the same number
        assert (await last_of(other.generate("Once", SHORT))).finished
        other.shutdown()

    asyncio.run(main())


def test_an_id_that_a_caller_chose_is_nobody_elses(shared):
    async def main():
        taken = str(next(shared._unused) + 1)
        mine = shared.generate("Once", LONG, taken)
        await anext(mine)
        others = [await last_of(shared.generate("Once", SHORT)) for _ in range(3)]
        assert taken not in {output.request_id for output in others}
        await mine.aclose()

    asyncio.run(main())


def test_abort_ends_a_request_by_its_name(shared):
    async def main():
        stream = shared.generate("Once", LONG, "mine")
        assert (await anext(stream)).request_id == "mine"
        with pytest.raises(ValueError, match="'mine' is in use"):
            await anext(shared.generate("Once", SHORT, "mine"))
        await shared.abort("mine")
        await shared.abort("nobody")
        last = await last_of(stream)
        assert last.finished and last.outputs[0].finish_reason == "abort"
        assert 0 < len(last.outputs[0].token_ids) < 1500

    asyncio.run(main())


def test_outputs_are_the_callers_own(shared):
    async def main():
        params = SamplingParams(temperature=0, max_tokens=30, logprobs=1)
        outputs = [o async for o in shared.generate("Once upon a time", params)]
        for output in outputs[:-1]:
            output.outputs[0].token_ids.clear()
            output.outputs[0].logprobs.clear()
        assert len(outputs[-1].outputs[0].token_ids) == len(outputs[-1].outputs[0].logprobs) == 30

    asyncio.run(main())


def test_a_listener_that_is_slow_misses_nothing(shared):
    async def main():
        params = LONG.clone()
        params.max_tokens = 200
        params.output_kind = RequestOutputKind.DELTA
        ids = []
        async for output in shared.generate("Once", params):
            ids += output.outputs[0].token_ids
            await asyncio.sleep(0.01)
        expected = LONG.clone()
        expected.max_tokens = 200
        assert ids == (await last_of(shared.generate("Once", expected))).outputs[0].token_ids

    asyncio.run(main())


def test_refusals_reach_their_caller_alone(shared):
    async def main():
        good = asyncio.create_task(last_of(shared.generate("Once", SHORT)))
        for prompt, error in (([99999], ValueError), ([], ValueError), ([1.5], TypeError)):
            with pytest.raises(error):
                await anext(shared.generate(prompt, SHORT))
        with pytest.raises(TypeError, match="sampling_params must be SamplingParams, got dict"):
            await anext(shared.generate("Once", {"temperature": 0}))
        assert (await good).finished
        assert not shared._news and not shared._numbers

    asyncio.run(main())


def test_one_event_loop_after_another(shared):
    for _ in range(3):
        assert asyncio.run(last_of(shared.generate("Once", SHORT))).finished

    async def main():
        assert (await last_of(shared.generate("Once", SHORT))).finished
        with pytest.raises(RuntimeError, match="one event loop at a time"):
            await asyncio.to_thread(asyncio.run, last_of(shared.generate("Once", SHORT)))
        return await last_of(shared.generate("Once", SHORT))

    assert asyncio.run(main()).finished


def test_chats_are_rendered_as_prompts(shared, llm):
    messages = [{"role": "user", "content": "Tell me a story."}]
    output = asyncio.run(last_of(shared.generate(shared.render_chat(messages), SHORT)))
    (expected,) = llm.chat(messages, SHORT, use_tqdm=False)
    assert (output.prompt, output.outputs) == (expected.prompt, expected.outputs)
    ids = shared.encode("Once upon a time")
    assert ids == llm.encode("Once upon a time") and shared.decode(ids) == "Once upon a time"


def test_shutdown_ends_all_requests(model):
    async def main():
        llm = AsyncLLM(model)
        stream = llm.generate("Once", LONG)
        await anext(stream)
        llm.shutdown()
        with pytest.raises(RuntimeError, match="shut down"):
            await last_of(stream)
        with pytest.raises(RuntimeError, match="closed"):
            await last_of(llm.generate("Once", SHORT))

    asyncio.run(main())


def test_many_are_aborted_with_one_call(shared):
    async def main():
        streams = [shared.generate("Once", LONG, f"many-{i}") for i in range(3)]
        for stream in streams:
            await anext(stream)
        await shared.abort(["many-0", "many-1", "nobody"])
        await shared.abort("many-2")
        for stream in streams:
            assert (await last_of(stream)).outputs[0].finish_reason == "abort"

    asyncio.run(main())


def test_its_cache_is_reset_and_its_steps_are_traced_while_it_runs(shared, tmp_path):
    prompt = {"prompt_token_ids": [5] * 600}

    async def main():
        await last_of(shared.generate(prompt, SHORT))
        assert (await last_of(shared.generate(prompt, SHORT))).num_cached_tokens == 512
        running = shared.generate("Once", LONG, "running")
        await anext(running)
        assert await shared.start_profile(str(tmp_path / "loop")) == str(tmp_path / "loop.trace.json")
        assert await shared.reset_prefix_cache()
        assert (await last_of(shared.generate(prompt, SHORT))).num_cached_tokens == 0
        await shared.stop_profile()
        await shared.abort("running")
        assert (await last_of(running)).finished
        with pytest.raises(OSError, match="can't be created"):
            await shared.start_profile("/nowhere/t")

    asyncio.run(main())
    events = json.loads((tmp_path / "loop.trace.json").read_text())
    assert len({event["id"] for event in events if event["ph"] == "b"}) == 2  # it and the one that came


def test_what_waits_for_a_step_is_done_one_after_the_other(shared, tmp_path):
    async def main():
        running = shared.generate("Once", LONG, "running")
        await anext(running)
        files = [str(tmp_path / f"{i}.trace.json") for i in range(4)]
        calls = [shared.start_profile(file.removesuffix(".trace.json")) for file in files]
        done = await asyncio.gather(*calls, *(shared.reset_prefix_cache() for _ in range(4)))
        assert done == [*files, *[True] * 4]
        assert await asyncio.gather(shared.stop_profile(), shared.stop_profile(), shared.reset_prefix_cache()) == [None, None, True]
        assert all(json.loads((tmp_path / f"{i}.trace.json").read_text()) for i in range(4))
        await shared.abort("running")
        assert (await last_of(running)).finished

    asyncio.run(main())


def test_what_waits_for_a_step_may_be_shut_down(model):
    llm = AsyncLLM(model)

    async def main():
        running = last_of(llm.generate("Once", LONG))
        calls = [llm.reset_prefix_cache() for _ in range(8)]
        tasks = [asyncio.create_task(call) for call in (running, *calls)]
        await asyncio.sleep(0)
        llm.shutdown()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[0], RuntimeError)
        assert all(one is True or isinstance(one, RuntimeError) for one in done[1:])

    asyncio.run(main())


def test_bad_words_of_its_callers_are_not_told(model):
    code = """
import asyncio, sys, nanovllm
async def main():
    llm = nanovllm.AsyncLLM(sys.argv[1])
    async for _ in llm.generate("Once", nanovllm.SamplingParams(max_tokens=1, bad_words=["umbrella", "butter "])):
        pass
    llm.shutdown()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""


def test_priorities_and_other_keywords_are_those_of_the_call(shared):
    async def main():
        with pytest.raises(ValueError, match="Got priority 1 but Priority"):
            await anext(shared.generate("Once", SHORT, priority=1))
        with pytest.raises(TypeError, match="'trace_headers', which vLLM has: use trace_file"):
            await anext(shared.generate("Once", SHORT, trace_headers={"a": "b"}))
        assert (await last_of(shared.generate("Once", SHORT, priority=0, lora_request=None))).finished

    asyncio.run(main())
