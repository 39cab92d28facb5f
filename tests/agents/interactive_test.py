"""Claude Code as a person has it, at a terminal: a task, its overview of the context, a shortened session, and on."""
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import command_lines_test as lines  # noqa: E402
from dictated_testing import DictatedTest  # noqa: E402
from serve_testing import run_tests  # noqa: E402

LATER = "And thanks?"


class Terminal:
    """A program on a pseudo-terminal; what it draws is in `drawn`."""

    def __init__(self, words, cwd, environment):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
        self.process = subprocess.Popen(words, cwd=cwd, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env={**environment, "TERM": "xterm-256color"},
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.drawn = ""
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        try:
            while piece := os.read(self.master, 1 << 16):
                self.drawn += piece.decode(errors="replace")
        except OSError:
            pass  # it has ended

    def wait_for(self, words, seconds=60):
        """Until they were drawn. Without their blanks, for which the cursor may be moved."""
        deadline = time.monotonic() + seconds
        while words.replace(" ", "") not in (seen := re.sub(r"\s|\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|.)", "", self.drawn)):
            if time.monotonic() > deadline:
                raise AssertionError(f"no {words!r} in {seen[-3000:]}")
            time.sleep(0.05)

    def enter(self, text):
        os.write(self.master, text.encode())
        time.sleep(1)  # keys that come with the text would be part of what is pasted
        os.write(self.master, b"\r")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


class Interactive(DictatedTest):
    setUp, script, settings, wait_until = lines.Claude.setUp, lines.Claude.script, staticmethod(lines.Claude.settings), lines.Claude.wait_until

    def open(self, server, *args, **environment):
        with open(os.path.join(self.home, ".claude.json"), "w", encoding="utf-8") as file:  # what it asks when it is first started
            json.dump({"hasCompletedOnboarding": True, "projects": {self.work: {"hasTrustDialogAccepted": True}}}, file)
        terminal = Terminal([lines.CLAUDE, "--model", "dictated", "--permission-mode", "manual", "--allowedTools", "Read,Edit,Bash", *args], self.work,
                            {"PATH": os.environ["PATH"], "HOME": self.home, "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1", **self.settings(server.port), **environment})
        self.addCleanup(terminal.close)
        terminal.wait_for("manual mode on")
        return terminal

    @staticmethod
    def num_answered(server, path):
        return len(re.findall(rf'POST {path}[^\n]*" 200 ', server.log()))

    def test_a_session_at_a_terminal(self):
        server = self.serve("--max-model-len", "65536")
        server.say(*self.script(), {"when": LATER, "say": "You are welcome."})
        terminal = self.open(server, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="")  # with the titles and probes that it switches off
        terminal.enter(lines.TASK)
        self.wait_until(lambda: server.prompts("BONJOUR, WORLD"), "its three calls")
        with open(self.file, encoding="utf-8") as file:
            self.assertEqual(file.read(), "Bonjour, world\n")
        terminal.wait_for("Bonjour now.")
        terminal.enter("/context")
        self.wait_until(lambda: self.num_answered(server, "/v1/messages/count_tokens") > 10, "it counts")
        terminal.wait_for("Free")
        num_answered = self.num_answered(server, r"/v1/messages\?")
        terminal.enter("/compact")
        terminal.wait_for("Compacted")
        self.assertGreater(self.num_answered(server, r"/v1/messages\?"), num_answered)
        terminal.enter(LATER)
        terminal.wait_for("welcome.")
        self.assertNotIn("BONJOUR, WORLD", server.prompts(LATER)[-1]["text"])
        # A title needs a grammar; nothing else is refused.
        refused = re.findall(r'"(?:POST|GET|HEAD) /(?!health)[^\n]*" (?!200)\d+ ', server.log())
        self.assertTrue(all(re.search('POST /v1/messages[^\n]*" 400 ', line) for line in refused), refused)
        self.assertLessEqual(len(refused), 3)
        for _ in range(2):
            os.write(terminal.master, b"\x03")
            time.sleep(0.5)
        self.assertEqual(terminal.process.wait(30), 0)
        self.assertEqual(server.get("/health").status, 200)

    def test_a_short_context_with_the_documented_settings(self):
        """Of 32,768 tokens Claude Code keeps its answers and 13,000 free: with answers of 32,000 it would shorten each session at once."""
        server = self.serve("--max-model-len", "32768")
        server.say(*self.script(), {"when": LATER, "say": "You are welcome."})
        terminal = self.open(server, "--tools", "Bash,Read,Edit", CLAUDE_CODE_MAX_CONTEXT_TOKENS="32768", CLAUDE_CODE_MAX_OUTPUT_TOKENS="4096")
        terminal.enter(lines.TASK)
        terminal.wait_for("Bonjour now.")
        terminal.enter(LATER)
        terminal.wait_for("welcome.")
        self.assertIn("BONJOUR, WORLD", server.prompts(LATER)[-1]["text"])  # nothing was shortened
        self.assertEqual(len(server.prompts(lines.TASK)), 5)


if __name__ == "__main__":
    run_tests()
