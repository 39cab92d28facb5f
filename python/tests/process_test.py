"""An engine among signals, threads, forks, and at a program's end."""
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
from nanovllm import LLM, SamplingParams, StructuredOutputsParams

LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
GREEDY = SamplingParams(temperature=0, max_tokens=20)


def run_python(code, *arguments, seconds=120, **kwargs):
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, **kwargs)


def test_import_takes_less_than_a_fifth_of_a_second():
    # Of the processor: a busy machine makes it no longer.
    code = "import time; t = time.process_time(); import nanovllm; print(time.process_time() - t)"
    assert min(float(run_python(code).stdout) for _ in range(5)) < 0.2


def test_ctrl_c_ends_generate_at_once_and_leaves_the_engine_usable(llm):
    expected = llm.generate("The little dog", GREEDY, use_tqdm=False)[0].outputs
    sent = []

    def interrupt():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.5, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["Once upon a time"] * 50, LONG, use_tqdm=False)
    assert time.monotonic() - sent[0] < 2  # a step, on a busy machine
    timer.join()
    assert llm.is_finished()
    assert llm.generate("The little dog", GREEDY, use_tqdm=False)[0].outputs == expected


IN_A_LONG_STEP = """
import os, signal, sys, threading, time, nanovllm
os.environ["NANOVLLM_CPU_ISA"] = "portable"
signal.signal(signal.SIGINT, signal.default_int_handler)
llm = nanovllm.LLM(sys.argv[1], device="cpu", num_threads=1)
greedy = nanovllm.SamplingParams(temperature=0, max_tokens=8)
expected = llm.generate("Once", greedy, use_tqdm=False)[0].outputs
prompts = [[5 + i] * 1000 for i in range(12)]  # one step of many seconds
one = nanovllm.SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)

def interrupted(call):
    sent = []
    def press():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    timer = threading.Timer(1, press)
    timer.start()
    try:
        call()
    except KeyboardInterrupt:
        assert time.monotonic() - sent[0] < 1
    else:
        raise AssertionError("the step was too short")
    timer.join()

def took_long(call):
    start = time.monotonic()
    result = call()
    assert time.monotonic() - start > 1, "it did not wait for the step"
    return result
"""
AFTER_GENERATE = f"""{IN_A_LONG_STEP}
interrupted(lambda: llm.generate(prompts, one, use_tqdm=False))
assert llm.decode(llm.encode("Once")) == "Once"  # nothing waits for what needs no step
interrupted(lambda: llm.generate("Once", greedy, use_tqdm=False))  # while it waits
assert took_long(lambda: llm.generate("Once", greedy, use_tqdm=False)[0].outputs) == expected
assert llm.is_finished()
"""
AFTER_STEP = f"""{IN_A_LONG_STEP}
for prompt in prompts:
    llm.add_request(prompt, one)
interrupted(llm.step)
assert len(took_long(llm.step)) == len(prompts)  # what came of the step that was left
assert llm.is_finished()
"""
AT_EXIT = f"""{IN_A_LONG_STEP}
interrupted(lambda: llm.generate(prompts, one, use_tqdm=False))
"""


@pytest.mark.parametrize("program", [AFTER_GENERATE, AFTER_STEP, AT_EXIT], ids=["generate", "step", "exit"])
def test_ctrl_c_is_heard_in_a_step_whose_end_the_next_call_waits_for(model, program):
    done = run_python(program, model, seconds=600)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_second_import_is_an_import_error_and_harms_nobody(model):
    code = """
import importlib, sys, nanovllm
first = nanovllm
try:
    importlib.reload(first._engine)  # which Python may pass over
except ImportError as error:
    print(error)
for name in [name for name in sys.modules if name.startswith("nanovllm")]:
    del sys.modules[name]
try:
    import nanovllm
except ImportError as error:
    print(error)
print(first.LLM(sys.argv[1]).generate("Once", first.SamplingParams(max_tokens=3), use_tqdm=False)[0].finished)
"""
    done = run_python(code, model)
    assert done.returncode == 0, done.stderr
    *sentences, last = done.stdout.splitlines()
    assert last == "True"
    assert sentences and all("imported once in a process" in sentence for sentence in sentences)


def test_a_subinterpreter_gets_an_import_error(model):
    code = """
import sys, nanovllm
try:
    import _interpreters as interpreters
    create = lambda: interpreters.create("legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    create = lambda: interpreters.create(isolated=False)
before = sys.argv[2] == "before"
llm = nanovllm.LLM(sys.argv[1]) if before else None
one = create()
interpreters.run_string(one, \"\"\"
try:
    import nanovllm
except ImportError as error:
    print(error, flush=True)
\"\"\")
interpreters.destroy(one)
llm = llm or nanovllm.LLM(sys.argv[1])
print(llm.generate("Once", nanovllm.SamplingParams(max_tokens=3), use_tqdm=False)[0].finished)
"""
    for order in ("before", "after"):
        program = code if order == "before" else code.replace("import sys, nanovllm", "import sys").replace("llm = llm or", "import nanovllm\nllm = llm or")
        done = run_python(program, model, order)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["nanovllm can't be imported in a subinterpreter: use it in the main one, or in another process.", "True"]


def test_other_threads_of_python_run_during_steps(llm):
    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.wait(0.001):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    llm.generate(["Once upon a time"] * 20, SamplingParams(max_tokens=100, ignore_eos=True), False)
    seconds = time.monotonic() - start
    stop.set()
    thread.join()
    assert len([t for t in ticks if start <= t <= start + seconds]) > 20 * seconds


def test_other_threads_of_python_run_while_a_grammar_is_compiled(llm):
    classes = "".join(f"[{chr(i)}{chr(i + step)}]" for step in (7, 11) for i in range(0x4E00, 0x4E00 + 20_000))

    def slow(name):
        asked = StructuredOutputsParams(regex=f"{name}({classes})?")
        return SamplingParams(temperature=0, max_tokens=5, structured_outputs=asked)

    added = {}

    def add(name):
        llm.add_request(name, "Once", slow(name))
        added[name] = time.monotonic()

    threads = [threading.Thread(target=add, args=(name,)) for name in ("a", "b")]  # one waits for the other
    ticks = [time.monotonic()]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.001)
        ticks.append(time.monotonic())
    assert set(added) == {"a", "b"}
    longest = max(after - before for before, after in zip(ticks, ticks[1:]))
    assert longest < (max(added.values()) - ticks[0]) / 3, "a grammar was compiled while nobody else could run"
    texts = {}
    while llm.has_unfinished_requests():
        texts |= {output.request_id: output.outputs[0].text for output in llm.step()}
    assert set(texts) == {"a", "b"} and all(text.startswith(name) for name, text in texts.items())


def test_a_second_thread_is_refused_and_harms_nobody(llm):
    params = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)
    expected = llm.generate("Once upon a time", params, use_tqdm=False)[0].outputs
    errors = []

    def intrude():
        try:
            llm.generate("x", GREEDY, use_tqdm=False)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Timer(0.05, intrude)
    thread.start()
    outputs = llm.generate(["Once upon a time"] * 4, params, use_tqdm=False)
    thread.join()
    assert [error for error in errors if "AsyncLLM" in error]
    assert all(output.outputs == expected for output in outputs)


def test_a_forked_child_gets_a_runtime_error(llm):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        for use in (lambda: llm.generate("x", GREEDY, False), lambda: llm.encode("x"), llm.step):
            try:
                use()
            except RuntimeError as error:
                os.write(write, f"{error}\n".encode())
        os._exit(7)
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    sentences = os.read(read, 10000).decode().splitlines()
    os.close(read)
    assert len(sentences) == 3
    assert all("forked child" in sentence for sentence in sentences)
    assert llm.generate("Once", GREEDY, use_tqdm=False)[0].finished


def test_a_forked_childs_end_is_quiet(model):
    code = """
import os, sys, threading, time, nanovllm
llm = nanovllm.LLM(sys.argv[1])
params = nanovllm.SamplingParams(max_tokens=2000, ignore_eos=True)
threading.Thread(target=lambda: llm.generate(["Once"] * 8, params, use_tqdm=False)).start()
time.sleep(0.1)
asynchronous = nanovllm.AsyncLLM(sys.argv[1])
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run_python(code, model)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_may_end_with_engines_and_requests(model, tmp_path):
    code = """
import asyncio, sys, nanovllm
llm = nanovllm.LLM(sys.argv[1], trace_file=sys.argv[2])
llm.add_request("Once")
llm.step()
asynchronous = nanovllm.AsyncLLM(sys.argv[1])
async def main():
    params = nanovllm.SamplingParams(max_tokens=1000, ignore_eos=True)
    async for output in asynchronous.generate("Once", params):
        break
asyncio.run(main())
"""
    done = run_python(code, model, str(tmp_path / "trace.json"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "trace.json").read_text().rstrip().endswith(("]", "}"))


@pytest.mark.parametrize("work", ["llm.generate(['Once'] * 8, params, use_tqdm=False)", "llm.add_request('Once', params); llm.step()"])
def test_a_program_may_end_while_a_thread_generates(model, work):
    code = f"""
import sys, threading, time, nanovllm
llm = nanovllm.LLM(sys.argv[1])
params = nanovllm.SamplingParams(max_tokens=2000, ignore_eos=True)
def generate():
    try:
        while True:
            {work}
    except RuntimeError as error:
        assert "closed" in str(error)
threading.Thread(target=generate, daemon=True).start()
time.sleep(0.3)
"""
    for _ in range(3):
        done = run_python(code, model)
        assert (done.returncode, done.stderr) == (0, "")


SLOW = """
import os, sys, threading, time, nanovllm
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)
sys.slow = Slow()  # the interpreter takes so long to end that threads come back meanwhile
"""


@pytest.mark.parametrize("engine", ["LLM", "AsyncLLM"])
def test_a_program_may_end_while_a_thread_loads(model, engine):
    code = f"""{SLOW}
def load():
    began.set()
    while True:
        try:
            llm = nanovllm.{engine}(sys.argv[1])
        except RuntimeError as error:
            assert "closed" in str(error)
began = threading.Event()
threading.Thread(target=load, daemon=True).start()
began.wait()
time.sleep(float(sys.argv[2]))
"""
    for i in range(6):
        done = run_python(code, model, str(0.04 * i))
        assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_may_end_while_a_thread_loads(model):
    code = f"""{SLOW}
nanovllm.LLM(sys.argv[1])
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
def load():
    while True:
        try:
            nanovllm.LLM(sys.argv[1])
        except RuntimeError as error:
            assert "closed" in str(error)
threading.Thread(target=load, daemon=True).start()
time.sleep(float(sys.argv[2]))
"""
    for i in range(8):
        done = run_python(code, model, str(0.05 + 0.02 * i))
        assert (done.returncode, done.stderr) == (0, "")


def test_a_program_may_end_while_a_thread_waits_for_an_engines_end(model):
    code = f"""{SLOW}
llm = nanovllm.LLM(sys.argv[1])
def generate():
    try:
        llm.generate(["Once" * 200] * 64, use_tqdm=False)  # whose first step takes its time
    except RuntimeError as error:
        assert "closed" in str(error)
threading.Thread(target=generate, daemon=True).start()
time.sleep(0.2)
threading.Thread(target=llm.exit, daemon=True).start()
"""
    for _ in range(6):
        done = run_python(code, model)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_program_may_end_while_a_thread_makes_parameters():
    code = f"""{SLOW}
def make():
    while True:
        nanovllm.SamplingParams(temperature=0.5, max_tokens=4)
threading.Thread(target=make, daemon=True).start()
time.sleep(0.1)
"""
    for _ in range(6):
        done = run_python(code)
        assert (done.returncode, done.stderr) == (0, "")


def test_token_ids_may_close_the_engine(model):
    code = """
import asyncio, sys, nanovllm
class Closing:
    def __init__(self, close):
        self.close = close
    def __index__(self):
        self.close()
        return 5
llm, asynchronous = nanovllm.LLM(sys.argv[1]), nanovllm.AsyncLLM(sys.argv[1])
async def generate():
    async for _ in asynchronous.generate([Closing(asynchronous.shutdown), 6]):
        pass
for use in (lambda: llm.decode([Closing(llm.exit), 6]), lambda: asyncio.run(generate())):
    try:
        use()
    except RuntimeError as error:
        print(error)
"""
    done = run_python(code, model)
    assert (done.returncode, done.stdout) == (0, "The engine was closed.\n" * 2), done.stderr


def test_exit_ends_what_another_thread_generates(model):
    llm = LLM(model)
    errors = []

    def generate():
        try:
            llm.generate(["Once"] * 8, LONG, use_tqdm=False)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=generate)
    thread.start()
    time.sleep(0.2)
    llm.exit()
    thread.join()
    assert errors == ["The engine was closed."]


def test_ten_thousand_requests_leave_memory_flat(llm):
    params = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=1)
    prompts = [f"{i % 10}" for i in range(1000)]
    llm.generate(prompts, params, use_tqdm=False)
    before = _resident_bytes()
    for _ in range(10):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert all(output.finished for output in outputs)
    del outputs
    assert _resident_bytes() - before < 4 << 20  # one kept result of each would be 10 MB


def _resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
