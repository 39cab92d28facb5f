"""Programs that use nanovllm as those for nano-vLLM and vLLM use their packages."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = "".join((ROOT / name).read_text() for name in ("docs/python.md", "README.md"))
EXAMPLES = [code for code in re.findall(r"^```python\n(.*?)^```", DOCUMENTS, re.DOTALL | re.MULTILINE) if "from nanovllm import" in code]

LIKE_NANO_VLLM = """
import sys
from random import Random
from nanovllm import LLM, SamplingParams
from transformers import AutoTokenizer

path = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(path)
llm = LLM(path, enforce_eager=False, max_model_len=1024, tensor_parallel_size=1)
questions = ["Who are you?", "Tell me about a dog."]
prompts = [
    tokenizer.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True)
    for q in questions
]
for output in llm.generate(prompts, SamplingParams(temperature=0.6, max_tokens=32)):
    assert output["text"] == tokenizer.decode(output["token_ids"], skip_special_tokens=True)

numbers = Random(0)
ids = [[numbers.randint(0, 4000) for _ in range(numbers.randint(10, 50))] for _ in range(16)]
params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=numbers.randint(5, 20)) for _ in ids]
llm.generate(["Benchmark: "], SamplingParams())
outputs = llm.generate(ids, params, use_tqdm=False)
assert [len(output["token_ids"]) for output in outputs] == [p.max_tokens for p in params]
"""
LIKE_VLLM = """
import sys
from nanovllm import LLM, SamplingParams

prompts = ["Once upon a time", "The little dog"]
llm = LLM(model=sys.argv[1])
for prompt, output in zip(prompts, llm.generate(prompts, SamplingParams(temperature=0.8, top_p=0.95))):
    assert output.prompt == prompt
    print(f"{output.prompt!r}: {output.outputs[0].text!r}")
"""


def run(program, model, **kwargs):
    done = subprocess.run([sys.executable, "-c", program, model], capture_output=True, text=True, timeout=300, env=os.environ, **kwargs)
    assert done.returncode == 0, done.stderr
    return done


# Programs as their authors write them for vLLM, and their flags; with the import replaced they run here.
PROGRAMS = {
    "abort": ["{}"],
    "async_streaming": ["{}"],
    "basic": ["{}"],
    "chat_flags": ["--model", "{}", "--max_model_len", "512"],
    "classification": ["{}"],
    "data_parallel": ["--model={}", "-dp=2", "-tp", "1", "--num-threads", "1"],
    "generate_flags": ["--model", "{}", "--max-tokens", "5", "--temperature", "0", "--no-enable-prefix-caching"],
    "llm_engine": ["--model", "{}", "--max-num-seqs", "4"],
    "prefix_caching": ["{}"],
    "profiling": ["{}"],
    "structured_outputs": ["{}"],
}


def run_for_vllm(name, model, folder):
    """What the program says, with the import replaced, in an empty folder."""
    source = (pathlib.Path(__file__).parent / "vllm_programs" / f"{name}.py").read_text()
    program = folder / f"{name}.py"
    program.write_text(re.sub(r"^from vllm\b", "from nanovllm", source, flags=re.MULTILINE))
    command = [sys.executable, str(program), *(word.format(model) for word in PROGRAMS[name])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "profiling"])
def test_a_program_for_vllm(name, model, tmp_path):
    assert run_for_vllm(name, model, tmp_path).strip()


def test_all_programs_for_vllm_are_run():
    there = {path.stem for path in (pathlib.Path(__file__).parent / "vllm_programs").glob("*.py")}
    assert there == set(PROGRAMS) and len(there) == 11


def test_a_profile_holds_what_came_between_its_two_calls(model, tmp_path):
    run_for_vllm("profiling", model, tmp_path)
    events = json.loads((tmp_path / "nanovllm.trace.json").read_text())
    assert len({event["id"] for event in events if event["ph"] == "b"}) == 2
    assert any(event["name"] == "step" for event in events)


def test_a_program_like_those_for_nano_vllm(model):
    assert "Generating: 100%" in run(LIKE_NANO_VLLM, model).stderr


def test_a_program_like_those_for_vllm(model):
    assert len(run(LIKE_VLLM, model).stdout.splitlines()) == 2


@pytest.mark.parametrize("number", range(4))
def test_the_documents_examples(model, number):
    assert len(EXAMPLES) == 4
    assert EXAMPLES[number].count("models/demo") == 1
    assert run(EXAMPLES[number], model, cwd=ROOT).stdout.strip()
