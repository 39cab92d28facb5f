"""Models by their names on a hub, which this test starts itself."""
import os
import pathlib
import subprocess
import sys
import time

MODEL = pathlib.Path(os.environ["NANOVLLM_MODEL"])
sys.path.append(str(pathlib.Path(__file__).parents[2] / "tests"))
from hub_testing import Hub  # noqa: E402

PROGRAM = """
import nanovllm
llm = nanovllm.LLM("Own/Demo")
print(llm.model)
print(llm.generate(["Once"], nanovllm.SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)[0].outputs[0].text)
"""


def run(program, home, hub):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": hub.url}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)


def test_a_name_is_pulled_once(tmp_path):
    hub = Hub()
    try:
        hub.add("Own/Demo", {path.name: path.read_bytes() for path in MODEL.iterdir()})
        first = run(PROGRAM, tmp_path, hub)
        assert first.returncode == 0, first.stderr
        assert first.stdout.startswith(str(tmp_path)) and "Pulling" in first.stderr
        hub.forget()
        again = run(PROGRAM, tmp_path, hub)
        assert again.stdout == first.stdout
        assert not hub.requests
    finally:
        hub.close()


THREADS = """
import threading
import nanovllm
found = []
threads = [threading.Thread(target=lambda: found.append(nanovllm.LLM("Own/Demo", num_threads=1, num_kvcache_blocks=16).model)) for _ in range(12)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(found) == 12 and len(set(found)) == 1, found
"""


def test_threads_that_pull_the_same_at_once(tmp_path):
    hub = Hub()
    try:
        hub.add("Own/Demo", {path.name: path.read_bytes() for path in MODEL.iterdir()})
        ended = run(THREADS, tmp_path, hub)
        assert ended.returncode == 0, ended.stderr
        assert sum(request.sent for request in hub.of("files")) == (MODEL / "model.safetensors").stat().st_size
    finally:
        hub.close()


def test_keywords_are_checked_before_anything_is_pulled(tmp_path):
    hub = Hub()
    try:
        hub.add("Own/Demo", {path.name: path.read_bytes() for path in MODEL.iterdir()})
        for wrong, error in (("block_size=16", "TypeError"), ("max_num_seqs='x'", "ValueError"), ("max_num_seqs=0", "ValueError")):
            ended = run(f"import nanovllm; nanovllm.LLM('Own/Demo', {wrong})", tmp_path, hub)
            assert error in ended.stderr
        assert not hub.requests
    finally:
        hub.close()


def test_ctrl_c_ends_a_pull(tmp_path):
    hub = Hub()
    try:
        hub.add("Own/Demo", {path.name: path.read_bytes() for path in MODEL.iterdir()})
        hub.speed = 1e5  # minutes
        # A shell's background jobs begin with SIGINT ignored.
        program = """
import os, signal, threading, nanovllm
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
nanovllm.LLM('Own/Demo')
"""
        begin = time.monotonic()
        ended = run(program, tmp_path, hub)
        assert ended.returncode != 0 and "KeyboardInterrupt" in ended.stderr
        assert time.monotonic() - begin < 20
    finally:
        hub.close()


ENDING = """
import threading, time, nanovllm
def load():
    try:
        nanovllm.LLM("Own/Demo")
    except RuntimeError as error:
        assert "closed" in str(error)
threading.Thread(target=load, daemon=True).start()
time.sleep(1)
"""


def test_a_program_may_end_while_a_thread_pulls(tmp_path):
    hub = Hub()
    try:
        hub.add("Own/Demo", {path.name: path.read_bytes() for path in MODEL.iterdir()})
        hub.speed = 1e5  # minutes
        begin = time.monotonic()
        ended = run(ENDING, tmp_path, hub)
        assert ended.returncode == 0 and "Pulling" in ended.stderr
        assert not set(ended.stderr.split()) & {"Error", "terminate", "Fatal", "Traceback", "Exception"}
        assert time.monotonic() - begin < 20
    finally:
        hub.close()


def test_a_name_that_is_not_there_is_an_error_that_says_so(tmp_path):
    hub = Hub()
    try:
        ended = run("import nanovllm; nanovllm.LLM('Own/Other')", tmp_path, hub)
        assert ended.returncode != 0 and "FileNotFoundError" in ended.stderr and "Own/Other" in ended.stderr
    finally:
        hub.close()
