"""Codex and Claude Code edit a real file on a model that says what a script tells it, through interruptions and faults."""
import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from dictated_testing import DictatedTest, call  # noqa: E402
from serve_testing import run_tests  # noqa: E402

import claude_agent_sdk  # noqa: E402
import codex_cli_bin  # noqa: E402

CODEX = os.path.join(os.path.dirname(codex_cli_bin.__file__), "bin", "codex")
CLAUDE = os.path.join(os.path.dirname(claude_agent_sdk.__file__), "_bundled", "claude")
THOUGHT = "<think>\nThey want it done.\n</think>\n\n"
TASK = "Make the greeting in hello.txt French."
SLOW = {"when": "Count slowly.", "say": " ".join(f"number {i}" for i in range(60)), "ms": 20}
COUNTED = SLOW["say"]


class Cutter:
    """Passes connections on to a server, and cuts the answer of some off behind so many bytes."""

    def __init__(self, port, cuts):
        self.port, self.cuts, self.num_cut = port, list(cuts), 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.own_port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.port))
                threading.Thread(target=self.pass_on, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self.pass_on, args=(server, client, True), daemon=True).start()

    def pass_on(self, source, to, is_answer):
        passed = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                to.sendall(piece)
                passed += len(piece)
                if is_answer and self.cuts and passed > self.cuts[0]:
                    self.cuts.pop(0)
                    self.num_cut += 1
                    break
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if is_answer:  # the other direction has ended by that
            source.close()
            to.close()


class CommandLine(DictatedTest):
    """What both command lines must do; `start` runs one, `said` reads its last words."""

    ARGS = ("--max-model-len", "65536")

    def setUp(self):
        self.home = self.enterContext(tempfile.TemporaryDirectory())
        self.work = os.path.join(self.home, "work")
        os.mkdir(self.work)
        self.file = os.path.join(self.work, "hello.txt")
        with open(self.file, "w", encoding="utf-8") as file:
            file.write("Hello, world\n")

    def spawn(self, words, **environment):
        process = subprocess.Popen(words, cwd=self.work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                                   env={"PATH": os.environ["PATH"], "HOME": self.home, "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1", **environment})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def run_to_end(self, port, task, **kwargs):
        process = self.start(port, task, **kwargs)
        output, _ = process.communicate(timeout=120)
        events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        self.assertEqual(process.returncode, 0, output[-3000:])
        return events

    def check_edited(self, server, events):
        with open(self.file, encoding="utf-8") as file:
            self.assertEqual(file.read(), "Bonjour, world\n")
        self.assertEqual(self.said(events).strip(), "The file says Bonjour now.", events[-3:])
        prompts = server.prompts(TASK)
        self.assertEqual(len(prompts), 4, server.log())
        for prompt in prompts[1:]:
            self.assertIn("They want it done.", prompt["text"])

    def test_a_file_is_edited_by_three_calls(self):
        server = self.serve(*self.ARGS)
        server.say(*self.script())
        events = self.run_to_end(server.port, TASK)
        self.check_edited(server, events)
        # All but the first request find the prompt before in the cache, but for a block and the turn's own beginning.
        self.assertGreater(server.metric("vllm:prefix_cache_hits_total"), 0.6 * server.metric("vllm:prefix_cache_queries_total"))

    def test_ctrl_c_ends_the_request(self):
        server = self.serve(*self.ARGS)
        server.say("Good.", {**SLOW, "ms": 200})
        process = self.start(server.port, "Count slowly.")
        self.wait_until(lambda: server.metric("vllm:num_requests_running") == 1, "it asks")
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        self.wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "its request ends", seconds=3)
        process.communicate(timeout=30)
        self.assertEqual(server.get("/health").status, 200)

    def test_a_full_queue_is_waited_for(self):
        server = self.serve(*self.ARGS, "--max-num-seqs", "1", "--max-queue-len", "1")
        server.say(*self.script(), {"when": "Others", "say": COUNTED, "ms": 20})
        others = [threading.Thread(target=server.post, args=("/v1/chat/completions", {"model": "dictated", "max_tokens": 400, "messages": [{"role": "user", "content": f"Others {i}"}]}))
                  for i in range(2)]
        for i, other in enumerate(others):
            other.start()
            self.wait_until(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == i + 1, "they ask")
        events = self.run_to_end(server.port, TASK)
        for other in others:
            other.join()
        self.assertRegex(server.log(), r'POST [^\n]* 429\b')
        self.check_edited(server, events)

    def test_a_stream_that_is_cut_is_asked_for_again(self):
        server = self.serve(*self.ARGS)
        server.say("Good.", SLOW)
        cutter = Cutter(server.port, [2500])
        self.addCleanup(cutter.listener.close)
        events = self.run_to_end(cutter.own_port, "Count slowly.")
        self.assertEqual(cutter.num_cut, 1)
        self.assertEqual(self.said(events).strip(), COUNTED)
        self.assertGreaterEqual(len(server.prompts("Count slowly.")), 2)

    def test_an_image_that_a_tool_returns_does_not_end_the_session(self):
        """On a model of text. The image would be sent again with every request."""
        server = self.serve(*self.ARGS)
        path = os.path.join(self.work, "dot.png")
        with open(path, "wb") as file:
            file.write(base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="))
        server.say("Good.", {"when": "Look at the dot.", "say": THOUGHT + self.look_at(path)}, {"when": self.LEFT_OUT, "say": "I can't see it."})
        events = self.run_to_end(server.port, "Look at the dot.")
        self.assertEqual(self.said(events).strip(), "I can't see it.")

    def test_a_worker_that_is_killed_is_not_noticed(self):
        server = self.serve(*self.ARGS)
        server.say("Good.", SLOW)
        process = self.start(server.port, "Count slowly.")
        self.wait_until(lambda: server.metric("vllm:generation_tokens_total") > 20, "it is given tokens")
        os.kill(server.workers()[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
        self.assertEqual(self.said([json.loads(line) for line in output.splitlines() if line.startswith("{")]).strip(), COUNTED)
        self.assertEqual(len(server.prompts("Count slowly.")), 1)  # the client did not ask again
        self.assertIn("SIGKILL", server.log())

    def test_a_model_that_is_not_there_and_a_context_that_is_too_short(self):
        server = self.serve("--max-model-len", "2048")
        process = self.start(server.port, TASK)
        output, _ = process.communicate(timeout=60)
        self.assertRegex(output, self.TOO_LONG)
        self.assertEqual(server.prompts(), [])
        process = self.start(server.port, TASK, model="another")
        output, _ = process.communicate(timeout=120)
        self.assertRegex(output, self.NO_MODEL)

    def wait_until(self, condition, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)


class Codex(CommandLine):
    TOO_LONG = "ran out of room in the model's context window|context_length_exceeded"
    NO_MODEL = "another"
    LEFT_OUT = "image left out: this model reads text alone"

    @staticmethod
    def look_at(path):
        return call("view_image", path=path)

    @staticmethod
    def script():
        return ("Good.", {"when": TASK, "say": THOUGHT + call("exec_command", cmd="cat hello.txt")},
                {"when": "Hello, world", "say": THOUGHT + "I edit it.\n" + call("exec_command", cmd="sed -i s/Hello/Bonjour/ hello.txt && echo edi''ted")},
                {"when": "edited", "say": THOUGHT + call("exec_command", cmd="tr a-z A-Z <hello.txt")},
                {"when": "BONJOUR, WORLD", "say": "The file says Bonjour now."})

    def start(self, port, task, model="dictated"):
        settings = os.path.join(self.home, "codex")
        os.makedirs(settings, exist_ok=True)
        with open(os.path.join(settings, "config.toml"), "w", encoding="utf-8") as file:
            file.write(f'model = "{model}"\nmodel_provider = "nanovllm"\nmodel_context_window = 65536\napproval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
                       f'[analytics]\nenabled = false\n[model_providers.nanovllm]\nname = "nanovllm"\nbase_url = "http://127.0.0.1:{port}/v1"\n'
                       'wire_api = "responses"\nenv_key = "NANOVLLM_KEY"\n')
        return self.spawn([CODEX, "exec", "--json", "--skip-git-repo-check", task], CODEX_HOME=settings, NANOVLLM_KEY="none")

    @staticmethod
    def said(events):
        texts = [event["item"]["text"] for event in events if event["type"] == "item.completed" and event["item"]["type"] == "agent_message"]
        return texts[-1] if texts else None

    def test_usage_is_shown(self):
        server = self.serve(*self.ARGS)
        server.say(*self.script())
        usage = self.run_to_end(server.port, TASK)[-1]["usage"]
        self.assertGreater(usage["input_tokens"], 20_000)
        self.assertGreater(usage["cached_input_tokens"], 0.6 * usage["input_tokens"])
        self.assertGreater(usage["reasoning_output_tokens"], 0)

    def test_apply_patch_is_a_custom_tool(self):
        server = self.serve(*self.ARGS, "--served-model-name", "gpt-5.5")
        patch = "*** Begin Patch\n*** Update File: hello.txt\n@@\n-Hello, world\n+Bonjour, world\n*** End Patch\n"
        server.say("Good.", {"when": TASK, "say": call("apply_patch", input=patch)}, {"when": "Success. Updated", "say": "The file says Bonjour now."})
        events = self.run_to_end(server.port, TASK, model="gpt-5.5")
        with open(self.file, encoding="utf-8") as file:
            self.assertEqual(file.read(), "Bonjour, world\n")
        self.assertEqual(self.said(events).strip(), "The file says Bonjour now.")


class Claude(CommandLine):
    TOO_LONG = "[Pp]rompt is too long"
    NO_MODEL = "selected model"
    LEFT_OUT = "media removed"  # as Claude Code says it, once it was refused

    @staticmethod
    def look_at(path):
        return call("Read", file_path=path)

    def script(self):
        return ("Good.", {"when": TASK, "say": THOUGHT + call("Read", file_path=self.file)},
                {"when": "Hello, world", "say": THOUGHT + "I edit it.\n" + call("Edit", file_path=self.file, old_string="Hello", new_string="Bonjour")},
                {"when": "has been updated", "say": THOUGHT + call("Bash", command="tr a-z A-Z <hello.txt", description="Looks at it")},
                {"when": "BONJOUR, WORLD", "say": "The file says Bonjour now."})

    @staticmethod
    def settings(port):
        return {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}", "ANTHROPIC_AUTH_TOKEN": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536"}

    def start(self, port, task, model="dictated"):
        return self.spawn([CLAUDE, "-p", task, "--model", model, "--allowedTools", "Read,Edit,Bash", "--output-format", "stream-json", "--verbose"], **self.settings(port))

    @staticmethod
    def said(events):
        return events[-1].get("result")

    def test_the_agent_sdk_asks_twice_in_one_session(self):
        server = self.serve(*self.ARGS)
        server.say(*self.script(), {"when": "And thanks?", "say": "You are welcome."})

        async def talk():
            options = claude_agent_sdk.ClaudeAgentOptions(model="dictated", cwd=self.work, allowed_tools=["Read", "Edit", "Bash"],
                                                          env={"HOME": self.home, "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1", **self.settings(server.port)})
            results = []
            async with claude_agent_sdk.ClaudeSDKClient(options=options) as client:
                for task in (TASK, "And thanks?"):
                    await client.query(task)
                    async for message in client.receive_response():
                        if isinstance(message, claude_agent_sdk.ResultMessage):
                            results.append(message.result)
            return results

        self.assertEqual([result.strip() for result in asyncio.run(talk())], ["The file says Bonjour now.", "You are welcome."])

    def test_tools_can_be_fewer_with_bare(self):
        server = self.serve("--max-model-len", "16384")
        server.say(*self.script())
        process = self.spawn([CLAUDE, "--bare", "-p", TASK, "--model", "dictated", "--allowedTools", "Read,Edit,Bash", "--output-format", "json"], **self.settings(server.port))
        output, _ = process.communicate(timeout=60)
        self.assertIn("The file says Bonjour now.", output)


del CommandLine

if __name__ == "__main__":
    run_tests()
