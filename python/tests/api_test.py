"""Keywords, results, and what is refused in which sentence."""
import ast
import copy
import dataclasses
import functools
import importlib
import inspect
import json
import operator
import os
import pathlib
import pickle
import pydoc
import re
import subprocess
import sys

import nanovllm
import pytest
from nanovllm import LLM, RequestOutputKind, SamplingParams, StructuredOutputsParams, _arguments, _engine
from nanovllm.utils.argparse_utils import FlexibleArgumentParser


def test_results_serve_both_worlds(llm):
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=2)
    (output,) = llm.generate(["Once upon a time"], params, use_tqdm=False)
    completion = output.outputs[0]
    assert output["text"] == completion.text
    assert output["token_ids"] == completion.token_ids
    both = {"text": completion.text, "token_ids": completion.token_ids}
    assert dict(output) == dict(output.items()) == both and list(output) == list(both) and {**output} == both
    assert "text" in output and "logprobs" not in output and list(output.values()) == list(both.values())
    assert output.get("text") == completion.text and output.get("logprobs", 5) == 5 and output
    with pytest.raises(KeyError):
        output["logprobs"]
    assert completion.finish_reason == "length" and completion.finished()
    chosen = [p[t].logprob for p, t in zip(completion.logprobs, completion.token_ids, strict=True)]
    assert completion.cumulative_logprob == pytest.approx(sum(chosen))
    assert all(p[t].rank == 1 for p, t in zip(completion.logprobs, completion.token_ids))
    metrics = output.metrics
    assert 0 < metrics.time_in_queue <= metrics.first_token_latency <= metrics.time_to_finish
    assert pickle.loads(pickle.dumps(output)) == output


class OwnParams(SamplingParams):
    pass


def test_sampling_params_are_those_of_the_table():
    params = SamplingParams(temperature=0.5, stop="x", logit_bias={3: 2.0}, max_tokens=None)
    assert params.temperature == 0.5 and params.stop == ["x"] and params.max_tokens is None
    assert repr(params) == (
        "SamplingParams(temperature=0.5, max_tokens=None, logit_bias={3: 2.0}, stop=['x'])"
    )
    for same in (copy.deepcopy(params), pickle.loads(pickle.dumps(params)), params.clone()):
        assert same == params and same is not params
    assert type(copy.copy(OwnParams(n=2))) is OwnParams
    assert (params == None) is False and params.__hash__ is None  # noqa: E711
    params.top_k = 7
    assert params.top_k == 7 and params != SamplingParams()
    assert SamplingParams().max_tokens == 64
    table = {name: default for name, default, _ in _engine.parameters()}
    assert {name: getattr(SamplingParams(), name) for name in table} == table


def test_what_is_assigned_is_checked_at_once():
    params = SamplingParams(n=2, max_tokens=10)
    before = params.clone()
    for name, value, sentence in [
        ("temperature", -1, "temperature must be non-negative, got -1.0"),
        ("top_p", 0, "top_p must be in"),
        ("top_k", -2, "top_k must be 0"),
        ("max_tokens", 0, "max_tokens must be at least 1, got 0"),
        ("max_tokens", "x", "max_tokens must be an integer"),
        ("logprobs", 21, "greater than max allowed: 20"),
        ("n", 0, "n must be at least 1"),
        ("stop", [""], "stop cannot contain an empty string"),
        ("bad_words", [" "], "white space only"),
        ("cache_salt", "", "non-empty string"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            setattr(params, name, value)
        assert params == before
    with pytest.raises(TypeError, match="output_kind must be a RequestOutputKind"):
        params.output_kind = "delta"
    with pytest.raises(AttributeError, match="temprature"):
        params.temprature = 1
    # What is wrong together is so when it is used: the other one may come next.
    params.min_tokens = 50
    params.temperature = 0
    params.max_tokens, params.n = 100, 1
    params.max_tokens, params.logprobs, params.stop = None, 20, "x"
    assert params == SamplingParams(min_tokens=50, temperature=0, max_tokens=None, logprobs=20, stop=["x"])


def test_help_shows_the_tables():
    text = pydoc.render_doc(SamplingParams, renderer=pydoc.plaintext)
    for name, _, _ in _engine.parameters():
        assert f"{name} = " in text
    assert "max_tokens = 64, where vLLM has 16" in text
    for cls in (LLM, nanovllm.LLMEngine, nanovllm.AsyncLLM):
        signature = inspect.signature(cls)
        for name, default, words in _engine.config_fields():
            assert words in cls.__doc__
            assert signature.parameters[name].default == default
    assert "--" not in SamplingParams.__doc__ + LLM.__doc__


def test_stubs_have_the_keywords_of_the_tables():
    stub = ast.parse((pathlib.Path(nanovllm.__file__).parent / "_engine.pyi").read_text())
    cls, arguments = (
        next(n for n in stub.body if isinstance(n, ast.ClassDef) and n.name == name)
        for name in ("SamplingParams", "EngineArgs")
    )
    (init,) = (n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    defaults = [ast.unparse(default) for default in init.args.kw_defaults[:-1]]
    keywords = [argument.arg for argument in init.args.kwonlyargs[:-1]]
    assert init.args.kwonlyargs[-1].arg == "output_kind"
    table = [(name, default) for name, default, _ in _engine.parameters()]
    assert list(zip(keywords, map(ast.literal_eval, defaults), strict=True)) == table
    fields = [name for name, _, _ in _engine.config_fields()]
    assert [n.target.id for n in arguments.body if isinstance(n, ast.AnnAssign)] == fields


def test_unknown_keywords_are_named_and_vllms_explained(model):
    with pytest.raises(TypeError, match="SamplingParams.*'temprature'; there are temperature, "):
        SamplingParams(temprature=1)
    for arguments in ({"best_of": 2}, {"best_of": object()}, {"best_of": 3, "n": 2}):
        with pytest.raises(TypeError, match="'best_of', which vLLM has: use n"):
            SamplingParams(**arguments)
    with pytest.raises(TypeError, match=r"LLM\(\).*'max_len'; there are device, "):
        LLM(model, max_len=3)
    with pytest.raises(TypeError, match="'block_size', which vLLM has: use kvcache_block_size"):
        LLM(model, block_size=16)
    known = {name for name, _, _ in [*_engine.parameters(), *_engine.config_fields()]}
    assert not known & {*_arguments._SAMPLING, *_arguments._ENGINE, *_arguments._NO_EFFECT}
    assert not {*_arguments._ENGINE} & {*_arguments._NO_EFFECT}


def test_what_asks_for_nothing_is_taken(llm, model):
    values = {name: value for name, other in _arguments._SAMPLING.items() for value in (None, *other.nothing)}
    assert SamplingParams(**values, max_tokens=3) == SamplingParams(max_tokens=3)
    for name, other in _arguments._SAMPLING.items():
        for value in (None, *other.nothing):
            assert SamplingParams(n=2, **{name: value}) == SamplingParams(n=2)
    assert SamplingParams(n=2, best_of=2, temperature=0.5) == SamplingParams(n=2, temperature=0.5)
    for pick in (0, -1):
        LLM(model, **{name: other.nothing[pick] for name, other in _arguments._ENGINE.items()})
    LLM(model, **dict.fromkeys(_arguments._ENGINE))
    LLM(model, tokenizer=model)
    no_effect = {
        "trust_remote_code": True,
        "swap_space": 8.5,
        "attention_backend": "FLASH_ATTN",
        "mamba_backend": "triton",
        "gdn_prefill_backend": "triton",
        "mamba_block_size": 64,
        "mamba_cache_mode": "align",
        "compilation_config": {"level": 3},
        "distributed_executor_backend": "mp",
        "disable_custom_all_reduce": True,
        "disable_log_stats": True,
    }
    assert {*no_effect} == {*_arguments._NO_EFFECT}
    told = [{**engine.info, "load_seconds": 0} for engine in (llm, LLM(model, **no_effect), LLM(model, **_arguments._NO_EFFECT))]
    assert told[0] == told[1] == told[2]
    assert nanovllm.EngineArgs(model, **no_effect).attention_backend == "FLASH_ATTN"
    params = SamplingParams(max_tokens=1)
    nothing = {name: other.nothing[0] for name, other in _arguments._CALLS.items()}
    assert llm.generate("x", params, use_tqdm=False, **nothing)
    assert llm.chat([{"role": "user", "content": "x"}], params, use_tqdm=False, **nothing)


def test_vllms_words_for_a_dtype_are_taken_as_the_command_takes_them(model):
    args = nanovllm.EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(["--model", model, "--dtype", "half"])
    for make in (lambda: LLM(model, dtype="half"), lambda: LLM(model, dtype="float16"),
                 lambda: LLM.from_engine_args(nanovllm.EngineArgs.from_cli_args(args))):
        with pytest.warns(UserWarning, match="dtype '(half|float16)' is taken as bfloat16"):
            assert make().info["dtype"] == "bfloat16"
    assert LLM(model, dtype="float").info["dtype"] == "float32"
    with pytest.raises(ValueError, match='dtype must be one of auto, bfloat16, float32, got "fp16"'):
        LLM(model, dtype="fp16")


def test_the_command_takes_what_keywords_take(model):
    """Its flags stand in src/cli/typed_words.cc."""
    flag = lambda name: f"--{name.replace('_', '-')}"
    flags = [word for name, value in _arguments._NO_EFFECT.items() for word in ([flag(name)] if value is False else [flag(name), "4"])]
    of_others = {"data_parallel_size"}  # which only the server has
    for name, other in _arguments._ENGINE.items():
        for value in other.nothing:
            if value is True:
                flags.append(flag(name))
            elif value not in (None, False, {}, []) and name not in of_others or name == "cpu_offload_gb":
                flags += [flag(name), f"{value:g}" if isinstance(value, (int, float)) else value]
    assert len(flags) > 30 and "raw_logprobs" in flags
    done = subprocess.run([os.environ["NANOVLLM"], "info", model, *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.startswith("nanovllm: ignored, as they change nothing here: "), done.stderr


def test_what_is_not_there_is_told_with_what_to_use_instead(llm, model):
    engine = {
        "hf_overrides": ({"a": 1}, "change the model's config.json"),
        "profiler_config": ({"profiler": "torch"}, "use trace_file, or start_profile"),
        "max_logprobs": (21, "20 log-probabilities of a position are the most"),
        "enable_sleep_mode": (True, r"exit\(\) gives the memory back"),
        "async_scheduling": (False, "steps are submitted ahead"),
        "tokenizer": ("another", "the model's own is used"),
        "enable_chunked_prefill": (False, "long prompts are always computed in chunks"),
        "data_parallel_size": (2, "start several programs"),
    }
    for name, (value, instead) in engine.items():
        for make in (LLM, nanovllm.AsyncLLM, nanovllm.EngineArgs):
            with pytest.raises(TypeError, match=rf"{make.__name__}\(\).*'{name}', which vLLM has: {instead}"):
                make(model, **{name: value})
    for name, value in {"flat_logprobs": True, "detokenize": False, "guided_decoding": object()}.items():
        with pytest.raises(TypeError, match=f"'{name}', which vLLM has: "):
            SamplingParams(**{name: value}, temperature=-1)
    for name in ("logprobs", "prompt_logprobs"):
        with pytest.raises(ValueError, match=f"{name} of -1 asks for the whole vocabulary, 4099 tokens, .* use {name} of 20"):
            llm.generate("x", SamplingParams(**{name: -1}), use_tqdm=False)
    for name in ("sleep", "wake_up", "get_metrics", "pause_generation"):
        assert not hasattr(llm, name)
        with pytest.raises(AttributeError, match=f"'LLM' object has no attribute '{name}', which vLLM has: "):
            getattr(llm, name)()
    with pytest.raises(AttributeError, match="'LLM' object has no attribute 'slep'.$"):
        llm.slep()
    calls = [
        ("generate", "x", "lora_request", object()),
        ("generate", "x", "loras", None),
        ("chat", [{"role": "user", "content": "x"}], "lora_request", object()),
        ("add_request", "x", "trace_headers", {"a": 1}),
    ]
    for call, prompt, name, value in calls:
        with pytest.raises(TypeError, match=rf"{call}\(\) got an unexpected keyword argument '{name}'"):
            getattr(llm, call)(prompt, **{name: value})
    for name, instead in {"v1.metrics.reader": "RequestOutput.metrics", "config": "help", "lora.request": "merge"}.items():
        with pytest.raises(ImportError, match=instead):
            importlib.import_module(f"nanovllm.{name}")
    with pytest.raises(ImportError, match="use StructuredOutputsParams"):
        from nanovllm.sampling_params import GuidedDecodingParams  # noqa: F401
    with pytest.raises(ImportError, match="use StructuredOutputsParams"):
        from nanovllm import GuidedDecodingParams  # noqa: F401,F811
    assert not hasattr(nanovllm, "guided")


def test_structured_outputs_are_parameters_like_others():
    assert importlib.import_module("nanovllm.sampling_params").StructuredOutputsParams is StructuredOutputsParams
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    params = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    assert params.json == json.dumps(schema, separators=(",", ":")) and params.disable_any_whitespace
    assert params.regex is None and params.json_object is False
    assert params == StructuredOutputsParams(json=params.json, disable_any_whitespace=True) != StructuredOutputsParams(json=schema)
    assert StructuredOutputsParams(schema) == StructuredOutputsParams(json=schema)
    assert repr(StructuredOutputsParams(choice=["a"], regex=None)) == "StructuredOutputsParams(choice=['a'])"
    asked = SamplingParams(structured_outputs=params, max_tokens=3)
    assert asked.structured_outputs == params and asked.clone() == asked == pickle.loads(pickle.dumps(asked))
    asked.structured_outputs = None
    assert asked == SamplingParams(max_tokens=3, structured_outputs=None)
    asked.structured_outputs = StructuredOutputsParams(json_object=True)
    assert asked.structured_outputs.json_object
    with pytest.raises(ValueError, match="multiple are specified: json, regex"):
        StructuredOutputsParams(json={}, regex="a")
    with pytest.raises(ValueError, match="none are specified"):
        StructuredOutputsParams()
    with pytest.raises(ValueError, match="structured_outputs.choice must be a list of texts"):
        StructuredOutputsParams(choice="a")
    with pytest.raises(TypeError, match=r"StructuredOutputsParams\(\) got an unexpected keyword argument 'lark'; there are json, regex, "):
        StructuredOutputsParams(lark="a")
    assert StructuredOutputsParams(regex="a", disable_fallback=False, _backend=None) == StructuredOutputsParams(regex="a")
    with pytest.raises(TypeError, match="'disable_fallback', which vLLM has: there is one engine for grammars"):
        StructuredOutputsParams(regex="a", disable_fallback=True)
    model = type("Model", (), {"model_json_schema": classmethod(lambda cls: {"type": "integer"})})
    assert StructuredOutputsParams(json=model.model_json_schema()).json == '{"type":"integer"}'
    with pytest.raises(TypeError, match=r"a pydantic model can't be taken here; give its schema, model_json_schema\(\)"):
        StructuredOutputsParams(json=model)
    for value in (object(), StructuredOutputsParams):
        with pytest.raises(TypeError):
            SamplingParams(structured_outputs=value)


def test_numbers_of_schemas_are_held_exactly_or_refused(llm):
    numbers = [2**64 - 1, -(2**63), 1e-300, 0.1]
    assert json.loads(StructuredOutputsParams(json={"enum": [*numbers, 10**23]}).json) == {"enum": [*numbers, 1e23]}
    rounded = "123456789012345678901234567890"
    sentence = f"the number {rounded} at /enum/1 can't be held exactly; use fewer digits"
    with pytest.raises(ValueError, match=sentence):
        StructuredOutputsParams(json={"enum": [1, int(rounded)]})
    for value, word in ((float("nan"), "nan"), (float("-inf"), "-inf")):
        with pytest.raises(ValueError, match=f"the number {word} at /properties/a/const is none that JSON has"):
            StructuredOutputsParams(json={"properties": {"a": {"const": value}}})
    with pytest.raises(ValueError, match=sentence):
        asked = StructuredOutputsParams(json=f'{{"enum": [1, {rounded}]}}')
        llm.generate("a", SamplingParams(structured_outputs=asked), use_tqdm=False)


def test_structured_outputs_bind_outputs(llm):
    def texts(**asked):
        params = SamplingParams(max_tokens=100, seed=1, structured_outputs=StructuredOutputsParams(**asked))
        return [output.outputs[0].text for output in llm.generate(["a", "b"], params, use_tqdm=False)]

    assert {*texts(choice=["yes", "no"])} <= {"yes", "no"}
    assert all(re.fullmatch("[a-c]{2}x", text) for text in texts(regex="[a-c]{2}x"))
    assert texts(grammar='root ::= "only this"') == ["only this"] * 2
    schema = {"type": "object", "properties": {"z": {"type": "boolean"}, "a": {"enum": [1, 2]}}, "required": ["z", "a"],
              "additionalProperties": False}
    for text in texts(json=schema):
        assert list(json.loads(text)) == ["z", "a"]
    for asked, sentence in [
        ({"json": {"not": {}}}, "not can't be enforced"),
        ({"json": "{"}, "JSON"),
        ({"regex": "a(b"}, r"\(at position 1\)"),
        ({"grammar": "root ::= other"}, '"other" is not defined'),
        ({"choice": []}, "choice is an empty list"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            texts(**asked)


def test_engine_arguments_are_an_object_and_flags(model):
    args = nanovllm.EngineArgs(model, max_num_seqs=3, revision=None)
    assert repr(args) == f"EngineArgs(model={model!r}, max_num_seqs=3)" and args != nanovllm.EngineArgs(model)
    assert args.max_num_seqs == 3 and args.tensor_parallel_size == 1 and args.trust_remote_code is False
    for make in (LLM, nanovllm.LLMEngine, nanovllm.AsyncLLM):
        engine = make.from_engine_args(args, usage_context=None)
        assert type(engine) is make and engine.info["max_num_seqs"] == 3
    with pytest.raises(TypeError, match="there are device, "):
        nanovllm.EngineArgs(model, max_seqs=3)
    parser = nanovllm.AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    words = ["--model", model, "--max_num_seqs=5", "-tp", "1", "--kv-cache-memory", "8388608", "--gpu_memory_utilization", "0.5"]
    parsed = parser.parse_args([*words, "--no-enable-prefix-caching", "--enforce-eager"])
    args = nanovllm.AsyncEngineArgs.from_cli_args(parsed)
    assert LLM.from_engine_args(args).info["kv_cache_bytes"] <= 8 << 20
    assert (args.gpu_memory_utilization, args.enable_prefix_caching, args.enforce_eager) == (0.5, False, True)
    plain = parser.parse_args([])
    assert nanovllm.EngineArgs.from_cli_args(plain) == nanovllm.EngineArgs()
    with pytest.raises(TypeError, match="'hf_overrides', which vLLM has"):
        nanovllm.EngineArgs.from_cli_args(parser.parse_args(["--hf-overrides", "{}"]))
    for name, _, help_text in _engine.config_fields():
        assert f"--{name.replace('_', '-')}" in parser.format_help() and help_text
    assert nanovllm.AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(), async_args_only=True).parse_args([])


def test_engine_arguments_are_a_dataclass(model):
    args = nanovllm.AsyncEngineArgs(model, max_num_seqs=3, dtype=None)
    assert dataclasses.is_dataclass(args) and [field.name for field in dataclasses.fields(args)] == [*vars(args)]
    assert dataclasses.asdict(args) == vars(args) and args == copy.copy(args)
    for keywords in (dataclasses.asdict(args), vars(args), {**vars(args), "seed": 5}):
        assert LLM(**keywords).info["max_num_seqs"] == 3
    other = dataclasses.replace(args, seed=5)
    assert (type(other), other.seed, other.max_num_seqs) == (nanovllm.AsyncEngineArgs, 5, 3) and other != args
    with pytest.raises(TypeError, match="'hf_overrides', which vLLM has"):
        dataclasses.replace(args, hf_overrides={"a": 1})
    assert (nanovllm.EngineArgs.max_num_seqs, nanovllm.EngineArgs().max_num_seqs) == (512, 512)


def test_flags_take_the_suffixes_of_the_command_line(model, capsys):
    parser = nanovllm.EngineArgs.add_cli_args(FlexibleArgumentParser())

    def parsed(flag, text):
        return vars(parser.parse_args([flag, text]))[flag[2:].replace("-", "_")]

    counts = {"8k": 8000, "8K": 8192, "1.5K": 1536, "25.6k": 25600, "2m": 2000000, "2M": 2 << 20, "512": 512, "-1": -1}
    for text, number in counts.items():
        assert parsed("--max-num-batched-tokens", text) == parsed("--max-model-len", text) == number
    assert parsed("--max-model-len", "auto") == -1
    sizes = {"64M": 64 << 20, "1.5GiB": 3 << 29, "4GB": 4 << 30, "4g": 4 * 10**9, "1T": 1 << 40, "4096": 4096}
    for text, number in sizes.items():
        assert parsed("--kv-cache-memory", text) == number
    for flag, text in [("--max-num-seqs", "8KB"), ("--max-num-seqs", "auto"), ("--max-model-len", "8x"), ("--kv-cache-memory", "8KK")]:
        with pytest.raises(SystemExit):
            parser.parse_args([flag, text])
        assert f"argument {flag}: must be an integer such as 8192, 8k (8,000) or 8K (8,192), got {text}" in capsys.readouterr().err
    args = nanovllm.EngineArgs.from_cli_args(parser.parse_args(["--model", model, "--max-num-batched-tokens", "2K", "--max-model-len", "1k"]))
    info = LLM.from_engine_args(args).info
    assert (info["max_num_batched_tokens"], info["max_model_len"]) == (2048, 1000)


def test_only_allowed_tokens_are_drawn(llm):
    params = SamplingParams(max_tokens=40, ignore_eos=True, seed=5, allowed_token_ids=(261, 13))
    assert params.allowed_token_ids == [261, 13] and "allowed_token_ids=[261, 13]" in repr(params)
    (output,) = llm.generate("The dog", params, use_tqdm=False)
    assert set(output.outputs[0].token_ids) == {261, 13}
    params.allowed_token_ids = None
    (output,) = llm.generate("The dog", params, use_tqdm=False)
    assert not set(output.outputs[0].token_ids) <= {261, 13}
    with pytest.raises(ValueError, match="allowed_token_ids is not None and empty!"):
        SamplingParams(allowed_token_ids=[])
    with pytest.raises(ValueError, match=r"\[4099\] in allowed_token_ids contain out-of-vocab"):
        llm.generate("x", SamplingParams(allowed_token_ids=[4098, 4099]), use_tqdm=False)


def test_a_profile_is_written_where_it_is_told(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    llm = LLM(model, trace_file="own.json")
    for prefix, name in ((None, "own.json"), ("two", "two.trace.json")):
        llm.generate(["a"] * 5, params, use_tqdm=False)
        assert llm.start_profile(prefix) == name
        llm.generate("b", params, use_tqdm=False)
        llm.stop_profile()
        lives = {event["id"] for event in json.loads((tmp_path / name).read_text()) if event["ph"] == "b"}
        assert len(lives) == 1
    llm.stop_profile()
    with pytest.raises(OSError, match="nowhere/t.trace.json can't be created"):
        llm.start_profile("nowhere/t")
    assert LLM(model).start_profile() == "nanovllm.trace.json"


def test_errors_are_pythons_own(llm, model, tmp_path):
    with pytest.raises(FileNotFoundError, match="/nonexistent: no such folder or file"):
        LLM("/nonexistent")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json"):
        LLM(tmp_path)
    with pytest.raises(MemoryError):
        LLM(model, kv_cache_memory=2**60)
    with pytest.raises(ValueError, match="max_num_seqs must be between 1 and 65536, got 0"):
        LLM(model, max_num_seqs=0)
    with pytest.raises(ValueError, match="max_num_seqs can't be 'x'"):
        LLM(model, max_num_seqs="x")
    with pytest.raises(ValueError, match="temperature must be non-negative, got -1.0"):
        SamplingParams(temperature=-1)
    with pytest.raises(ValueError, match="max_tokens must be an integer"):
        SamplingParams(max_tokens="x")
    with pytest.raises(ValueError, match="does not fit into 64 bits"):
        SamplingParams(seed=2**64)
    with pytest.raises(ValueError, match=f"seed must be an integer from {-2**63} to {2**63 - 1}, got {2**63}"):
        SamplingParams(seed=2**63)
    assert [SamplingParams(seed=seed).seed for seed in (-2**63, -2, -1, 2**63 - 1)] == [-2**63, -2, None, 2**63 - 1]
    refused = [
        (ValueError, [[1, 99999]], "prompt 1: .*99999"),
        (ValueError, [[]], "prompt 1: .*empty"),
        (ValueError, [{"prompt": "x", "multi_modal_data": {"image": 1}}], "multi_modal_data"),
        (ValueError, ["\ud800"], "prompt 1: .*surrogates not allowed"),
        (ValueError, [{"prompt": "x\udc80"}], "prompt 1: .*position 1: surrogates not allowed"),
        (ValueError, [[2**31]], "prompt 1: Token id 2147483648 is out of vocabulary"),
        (ValueError, [[2**70]], f"prompt 1: Token id {2**70} is out of vocabulary"),
        (TypeError, [b"x"], "prompt 1: .*got bytes"),
        (TypeError, [[True]], "prompt 1: .*must be integers, got bool"),
        (TypeError, [[1.5]], "prompt 1: .*must be integers, got float"),
        (TypeError, [None], "prompt 1: .*got NoneType"),
        (TypeError, [{}], 'prompt 1: .*"prompt"'),
    ]
    for error, prompts, sentence in refused:
        with pytest.raises(error, match=sentence):
            llm.generate(["fine", *prompts], use_tqdm=False)
    with pytest.raises(ValueError, match=r"prompts \(2\) and sampling params \(1\)"):
        llm.generate(["a", "b"], [SamplingParams()], use_tqdm=False)
    assert llm.is_finished()
    assert llm.generate([], use_tqdm=False) == []


def test_values_that_hold_themselves_are_recursion_errors():
    endless = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        SamplingParams(stop=endless)


def test_texts_that_are_not_unicode_are_value_errors(llm):
    for call in (
        lambda: llm.generate("\ud800", use_tqdm=False),
        lambda: llm.encode("\ud800"),
        lambda: SamplingParams(stop="\ud800"),
        lambda: llm.chat([{"role": "user", "content": "\ud800"}], use_tqdm=False),
    ):
        with pytest.raises(ValueError, match="not Unicode: .*'.ud800' in position 0: surrogates"):
            call()


def test_sentences_speak_of_what_was_given(llm):
    for ids, what in ((5, "int"), (None, "NoneType"), ("abc", "str"), ({"a": 1}, "dict")):
        with pytest.raises(TypeError, match=f"^token ids must be a list or an array of integers, got {what}$"):
            llm.decode(ids)
    with pytest.raises(TypeError, match="^token ids must be integers, got str$"):
        llm.decode(["a"])
    with pytest.raises(TypeError, match="^a text must be a str, got NoneType$"):
        llm.encode(None)
    for prompts, what in ((None, "NoneType"), (5, "int"), (5.5, "float"), (llm, "LLM")):
        with pytest.raises(TypeError, match=f"^a prompt must be a str, a list .*, got {what}$"):
            llm.generate(prompts, use_tqdm=False)
    with pytest.raises(TypeError, match="^token ids must be a list or an array of integers, got int$"):
        llm.generate({"prompt_token_ids": 5}, use_tqdm=False)
    for messages, what in ((None, "NoneType"), (5, "int"), ({"role": "user", "content": "x"}, "dict")):
        with pytest.raises(TypeError, match=f'^messages must be a list of dicts with "role" and "content".*, got {what}$'):
            llm.chat(messages, use_tqdm=False)


def test_parameters_of_another_type_are_type_errors(llm):
    with pytest.raises(TypeError, match="a text must be a str, got int"):
        llm.encode(5)
    for bad, name in (({"n": 1}, "dict"), ([SamplingParams(), {"n": 1}], "dict"), ("x", "str"), (5, "int")):
        with pytest.raises(TypeError, match=f"sampling_params must be SamplingParams.*got {name}"):
            llm.generate(["a", "b"], bad, use_tqdm=False)
    with pytest.raises(TypeError, match="sampling_params must be SamplingParams, got int"):
        llm.add_request("a", 0)
    with pytest.raises(TypeError, match="output_kind must be a RequestOutputKind"):
        SamplingParams(output_kind="delta")
    with pytest.raises(ValueError, match=r"prompts \(1\) and sampling params \(0\)"):
        llm.generate(["a"], [], use_tqdm=False)


def test_a_closed_engine_says_so(model):
    llm = LLM(model)
    llm.exit()
    llm.exit()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("x", use_tqdm=False)


def test_without_parameters_the_models_own_hold(llm):
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.7, top_p=0.9)


def test_requests_of_steps_run_along_with_generate(model):
    llm = LLM(model)
    params = SamplingParams(temperature=0, max_tokens=5)
    expected = llm.generate("The little dog", params, use_tqdm=False)[0].outputs
    assert llm.add_request("mine", "The little dog", params) == "mine"
    number = llm.add_request({"prompt": "The little dog"}, params)
    llm.generate("Once", SamplingParams(max_tokens=20), use_tqdm=False)
    assert llm.has_unfinished_requests()
    last = {output.request_id: output for output in llm.step()}
    assert last["mine"].outputs == last[number].outputs == expected
    assert llm.is_finished()


def test_requests_are_added_as_vllm_does_it(model):
    llm = LLM(os.fsencode(model), seed=None, dtype=None, max_model_len=None)  # None: the defaults
    params = SamplingParams(max_tokens=1)
    llm.add_request("a", "Once", params=params)
    llm.add_request("b", prompt={"prompt": "Once", "prompt_token_ids": None}, params=params)
    llm.add_request(request_id="c", prompt="Once", params=params)
    with pytest.raises(ValueError, match="'c' is in use"):
        llm.add_request("c", "Once", params)
    assert llm.add_request("Once", params=params) == "3"
    assert llm.add_request(prompt="Once", params=params) == "4"
    assert {output.request_id for output in llm.step()} == {"a", "b", "c", "3", "4"}


def test_no_two_requests_have_one_name(model):
    llm = LLM(model)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    assert llm.add_request("Once", params) == "0"
    with pytest.raises(ValueError, match="'0' is in use"):
        llm.add_request("0", "Once", params)
    llm.add_request("2", "Once", params)
    names = ["0", "2", *(llm.add_request("Once", params) for _ in range(3))]
    assert len(set(names)) == 5
    llm.step()
    llm.abort_request(names[2])
    ended = [output.request_id for output in llm.step() if output.finished]
    assert ended == [names[2]]
    assert llm.add_request(names[2], "Once", params) == names[2]  # it is free again
    llm.abort_request(names)
    assert {output.request_id for output in llm.step() if output.finished} == set(names)
    assert llm.is_finished()


def test_only_prompts_of_the_same_salt_share_the_cache(model):
    llm = LLM(model, kvcache_block_size=16)
    params = SamplingParams(temperature=0, max_tokens=1)
    ids = list(range(1, 41))

    def num_cached_tokens(salt):
        prompt = {"prompt_token_ids": ids, "cache_salt": salt}
        return llm.generate(prompt, params, use_tqdm=False)[0].num_cached_tokens

    assert [num_cached_tokens(salt) for salt in ("a", None, "b", "a", "b", None)] == [0, 0, 0, 32, 32, 32]
    assert llm.generate([ids], SamplingParams(max_tokens=1, cache_salt="a"), use_tqdm=False)[0].num_cached_tokens == 32
    assert params.cache_salt is None
    with pytest.raises(ValueError, match="'cache_salt' must be a non-empty string"):
        num_cached_tokens("")


def test_info_tells_what_of_the_weights_stays_in_the_file(llm):
    on_cpu = llm.info["device_type"] == "cpu"
    assert (0 < llm.info["mapped_weight_bytes"] < llm.info["weight_bytes"]) == on_cpu


def test_a_context_beyond_the_models_is_lowered_and_that_is_said(model, capfd):
    assert LLM(model, max_model_len=2048).info["max_model_len"] == 2048
    assert "max_model_len" not in capfd.readouterr().err
    assert LLM(model, max_model_len=4096).info["max_model_len"] == 2048  # nano-vLLM's default
    said = f"nanovllm: max_model_len is lowered from 4096 to 2048, which {model} was made for\n"
    assert capfd.readouterr().err.count(said) == 1


def test_a_context_that_nobody_asked_for_is_what_one_request_has_room_for(model):
    assert LLM(model, kv_cache_memory=8 << 20).info["max_model_len"] == 2048
    llm = LLM(model, kv_cache_memory=4 << 20)
    assert llm.info["max_model_len"] == 1025
    output = llm.generate([[5] * 1000], SamplingParams(max_tokens=None, ignore_eos=True), use_tqdm=False)[0]
    assert len(output.outputs[0].token_ids) == 25
    assert LLM(model, kv_cache_memory=4 << 20, max_model_len=2048).info["max_model_len"] == 2048


def test_priorities_are_those_of_the_call(model):
    llm = LLM(model, scheduling_policy="priority", max_num_seqs=1)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    for given in (params, [params] * 3):
        outputs = llm.generate(["a", "b", "c"], given, use_tqdm=False, priority=[3, 1, 2])
        ends = [output.metrics.time_to_finish for output in outputs]
        assert ends[1] < ends[2] < ends[0]
    assert params.priority == 0
    with pytest.raises(ValueError, match=r"prompts \(1\) and priority \(2\)"):
        llm.generate("a", params, use_tqdm=False, priority=[1, 2])
    ends = [output.metrics.time_to_finish for output in llm.generate(["a", "b"], params, use_tqdm=False, priority=1)]
    assert ends[0] < ends[1]
    conversation = [{"role": "user", "content": "x"}]
    first, last = llm.chat([conversation] * 2, params, use_tqdm=False, priority=[2, 1])
    assert last.metrics.time_to_finish < first.metrics.time_to_finish
    llm.add_request("late", "a", params, priority=2)
    llm.add_request("b", params, priority=1)
    assert [output.request_id for output in llm.step()] != ["late"]


def test_a_priority_without_its_policy_is_refused(llm):
    for call in (
        lambda: llm.generate("x", priority=1, use_tqdm=False),
        lambda: llm.chat([{"role": "user", "content": "x"}], priority=1, use_tqdm=False),
        lambda: llm.add_request("x", priority=1),
    ):
        with pytest.raises(ValueError, match="Got priority 1 but Priority scheduling is not enabled"):
            call()
    assert llm.generate("x", SamplingParams(max_tokens=1), priority=0, use_tqdm=False)


def test_contents_may_come_in_parts(llm):
    params = SamplingParams(temperature=0, max_tokens=3)
    parts = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "a story."}]
    (output,) = llm.chat([{"role": "user", "content": parts}], params, use_tqdm=False)
    (same,) = llm.chat([{"role": "user", "content": "Tell me a story."}], params, use_tqdm=False)
    assert output.prompt == same.prompt and output.outputs == same.outputs
    for wrong in ("x", ["x"], [[5]]):
        with pytest.raises(TypeError, match="a message must be a dict .* got (str|int)"):
            llm.chat(wrong, params, use_tqdm=False)
    for part in ({"type": "image_url", "image_url": {"url": "x"}}, {"type": "text"}, 5):
        with pytest.raises(ValueError, match=r"messages\[0\]\.content\[0\] (is of the type|has no text|must be a text)"):
            llm.chat([{"role": "user", "content": [part]}], params, use_tqdm=False)


def test_a_chat_goes_on_with_its_last_message(llm):
    params = SamplingParams(temperature=0, max_tokens=8)
    turn = [{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": "Once upon a"}]
    ends = {"add_generation_prompt": False, "continue_final_message": True}
    (output,) = llm.chat(turn, params, use_tqdm=False, **ends)
    whole = llm.render_chat(turn, add_generation_prompt=False)["prompt"]
    assert output.prompt.endswith("Once upon a") and whole.startswith(output.prompt) and whole != output.prompt
    assert output.prompt == llm.render_chat(turn, **ends)["prompt"]
    assert output.prompt_token_ids == llm.encode(output.prompt, add_special_tokens=False)
    (same,) = llm.generate([output.prompt_token_ids], params, use_tqdm=False)
    assert output.outputs == same.outputs and turn[-1]["content"] == "Once upon a"
    (again,) = llm.chat(turn, params, use_tqdm=False, add_generation_prompt=False, continue_final_message=False)
    assert again.prompt == whole
    with pytest.raises(ValueError, match="Cannot set both `continue_final_message` and `add_generation_prompt` to True"):
        llm.chat(turn, params, use_tqdm=False, continue_final_message=True)
    with pytest.raises(ValueError, match="the final message does not appear in the chat"):
        llm.chat(turn, params, use_tqdm=False, chat_template="x", **ends)


def test_a_chat_template_that_can_not_be_used_is_a_sentence(model, tmp_path):
    for path in pathlib.Path(model).iterdir():
        (tmp_path / path.name).symlink_to(path.resolve())
    (tmp_path / "chat_template.jinja").write_text("a\n{% include 'x' %}")
    llm = nanovllm.LLM(tmp_path)
    params = SamplingParams(temperature=0, max_tokens=2)
    assert llm.generate("The cat", params, use_tqdm=False)
    with pytest.raises(ValueError, match=r"chat_template\.jinja: chat template, line 2, column 4: the statement 'include'"):
        llm.chat([{"role": "user", "content": "x"}], params, use_tqdm=False)


def test_the_tokenizer_is_that_of_transformers(llm):
    pytest.importorskip("transformers", reason="no transformers here")
    assert llm.get_tokenizer().encode("Once upon a time", add_special_tokens=False) == llm.encode("Once upon a time", False)


def test_a_gguf_file_has_a_tokenizer_of_ours():
    llm = LLM(pathlib.Path(__file__).parents[2] / "tests" / "data" / "gguf_llama.gguf")
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("Once upon", add_special_tokens=False)
    assert ids == llm.encode("Once upon", False) and tokenizer("Once upon")["input_ids"] == llm.encode("Once upon")
    assert tokenizer.decode(ids) == "Once upon" and tokenizer.decode(ids[0]) == llm.decode(ids[:1])
    messages = [{"role": "user", "content": "Hello"}]
    expected = llm.render_chat(messages)
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == expected["prompt"]
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True) == expected["prompt_token_ids"]
    continued = tokenizer.apply_chat_template(messages, continue_final_message=True, tokenize=False)
    assert continued.endswith("Hello") and expected["prompt"].startswith(continued)
    with pytest.raises(AttributeError, match="a GGUF file has no 'vocab_size', but encode, decode and"):
        tokenizer.vocab_size


def test_a_folders_tokenizer_needs_transformers(llm, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match="the package transformers, which is not here; encode"):
        llm.get_tokenizer()


def test_bad_words_that_can_come_are_named(model):
    code = """
import sys, nanovllm
llm = nanovllm.LLM(sys.argv[1])
words = [word for word in "umbrella butterfly elephant rabbit princess garden yesterday".split() if len(llm.encode(" " + word, False)) == 1 < len(llm.encode(word, False))]
assert words
for _ in range(2):
    llm.generate("Once", nanovllm.SamplingParams(max_tokens=1, bad_words=[words[0], "the"]), use_tqdm=False)
print(words[0], *llm.encode(" " + words[0], False))
"""
    done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, timeout=120, check=True)
    word, token = done.stdout.split()
    (line,) = done.stderr.splitlines()
    assert line.startswith(f'nanovllm: bad_words: "{word}" can come: behind a space its tokens are {token} and not ')


def test_of_requests_that_run_along_only_what_counts_is_kept(model):
    llm = LLM(model)
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True, logprobs=1, prompt_logprobs=1)
    delta = params.clone()
    delta.output_kind = RequestOutputKind.DELTA
    llm.add_request("all", "Once", params)
    llm.add_request("new", "Once", delta)
    llm.generate("Once", SamplingParams(max_tokens=40, ignore_eos=True), use_tqdm=False)
    outputs = llm.step()
    assert [output.request_id for output in outputs] == ["all", "new"]
    while not llm.is_finished():
        outputs += llm.step()
    whole = [o for o in outputs if o.request_id == "all"][-1]
    parts = [o for o in outputs if o.request_id == "new"]
    assert parts[0].prompt_logprobs == whole.prompt_logprobs is not None
    for name in ("text", "token_ids", "logprobs"):
        pieces = [getattr(part.outputs[0], name) for part in parts]
        assert functools.reduce(operator.add, pieces) == getattr(whole.outputs[0], name)
    assert len(whole.outputs[0].token_ids) == 50


def test_an_aborted_request_ends_with_the_next_step(model):
    llm = LLM(model)
    name = llm.add_request("mine", "Once", SamplingParams(max_tokens=50, ignore_eos=True))
    other = llm.add_request("Once", SamplingParams(max_tokens=50, ignore_eos=True))
    llm.step()
    assert llm.last_step.num_running == 2
    llm.abort_request([name, other, "nobody", "77"])
    outputs = llm.step()
    assert {o.outputs[0].finish_reason for o in outputs} == {"abort"} and len(outputs) == 2
    assert llm.is_finished()


def test_progress_is_told_to_whom_it_shall(llm):
    class Bar:
        n = 0
        closed = False

        def __init__(self, total, **_):
            bars.append(self)
            self.total = total

        def update(self, n):
            self.n += n

        def set_postfix(self, numbers, **_):
            assert set(numbers) == {"Prefill", "Decode"}

        def close(self):
            self.closed = True

    bars = []
    llm.generate(["a"] * 30, SamplingParams(max_tokens=5), use_tqdm=Bar)
    (bar,) = bars
    assert bar.total == bar.n == 30 and bar.closed
    llm.generate(["a"], SamplingParams(max_tokens=5))  # tqdm's own


def test_an_exception_of_the_bar_ends_generate(llm):
    class Bar:
        n = 0

        def __init__(self, **_):
            pass

        def set_postfix(self, *_, **__):
            raise LookupError("no bar")

        def close(self):
            pass

    with pytest.raises(LookupError, match="no bar"):
        llm.generate(["a"], SamplingParams(max_tokens=500, ignore_eos=True), use_tqdm=Bar)
    assert llm.is_finished()
    Bar.set_postfix = lambda *_, **__: llm.exit()
    with pytest.raises(RuntimeError, match="Another call of this engine is running"):
        llm.generate(["a"], SamplingParams(max_tokens=500, ignore_eos=True), use_tqdm=Bar)
    assert llm.generate([], use_tqdm=False) == []
