"""What the tests share: the demo model, and the binary whose outputs are the expected ones."""
import json
import os
import subprocess

import nanovllm
import pytest

BINARY = os.environ["NANOVLLM"]
MODEL = os.environ["NANOVLLM_MODEL"]


@pytest.fixture(scope="session")
def model():
    return MODEL


@pytest.fixture(scope="session")
def llm():
    return nanovllm.LLM(MODEL)


@pytest.fixture(scope="session")
def run_binary(tmp_path_factory):
    """The result lines of `nanovllm generate` for request lines, in their order."""

    def run(requests, *flags):
        path = tmp_path_factory.mktemp("requests") / "requests.jsonl"
        path.write_text("".join(json.dumps(request) + "\n" for request in requests))
        command = [BINARY, "generate", MODEL, "-q", "--input", str(path), *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return sorted(map(json.loads, done.stdout.splitlines()), key=lambda line: line["index"])

    return run
