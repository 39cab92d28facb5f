"""Codex and Claude Code on a small real model: they get answers or clean errors, and nothing crashes. Its answers are its own."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import command_lines_test as lines  # noqa: E402
from serve_testing import Server, run_tests  # noqa: E402

MODEL = os.environ.get("NANOVLLM_SMALL_MODEL", "")
MISSING = [] if os.path.exists(MODEL) else [f"the small model {MODEL}"]


@unittest.skipIf(MISSING, "no small model")
class SmallModel(unittest.TestCase):
    setUp, spawn = lines.Codex.setUp, lines.Codex.spawn
    start_codex, start_claude, settings = lines.Codex.start, lines.Claude.start, staticmethod(lines.Claude.settings)

    def serve(self, *args):
        server = Server("--served-model-name", "dictated", "--kv-cache-memory", "1G", *args, model=MODEL, small=False)
        self.addCleanup(server.close)
        return server

    def check_alive(self, server):
        self.assertEqual(server.get("/health").status, 200)
        self.assertNotRegex(server.log(), r"SIG[A-Z]+|internal error")
        self.assertNotRegex(server.log(), r'POST [^\n]*" 5\d\d ')

    def test_claude_code_gets_an_answer(self):
        server = self.serve("--tool-call-parser", "hermes")
        process = self.spawn([lines.CLAUDE, "--bare", "-p", "Say hello.", "--model", "dictated", "--output-format", "json"],
                             **self.settings(server.port), CLAUDE_CODE_MAX_OUTPUT_TOKENS="40")
        output, _ = process.communicate(timeout=300)
        self.check_alive(server)
        self.assertRegex(server.log(), r'POST /v1/messages[^\n]* 200 ')
        self.assertIn('"type":"result"', output)

    def test_codex_gets_an_answer(self):
        server = self.serve("--tool-call-parser", "hermes")
        output, _ = self.start_codex(server.port, "Say hello.").communicate(timeout=500)
        self.check_alive(server)
        self.assertRegex(server.log(), r'POST /v1/responses[^\n]* 200 ')
        self.assertRegex(output, "turn.completed|max_output_tokens", output)

    def test_what_is_longer_than_its_context_is_told_so(self):
        server = self.serve("--tool-call-parser", "hermes", "--max-model-len", "2048")
        output, _ = self.start_claude(server.port, "Say hello.").communicate(timeout=300)
        self.assertRegex(output, lines.Claude.TOO_LONG)
        output, _ = self.start_codex(server.port, "Say hello.").communicate(timeout=300)
        self.assertRegex(output, lines.Codex.TOO_LONG)
        self.check_alive(server)

    def test_without_a_parser_of_its_calls_tools_are_refused_in_a_sentence(self):
        server = self.serve()
        output, _ = self.start_codex(server.port, "Say hello.").communicate(timeout=300)
        self.assertIn("start the server with --tool-call-parser", output)
        self.check_alive(server)


if __name__ == "__main__":
    run_tests(MISSING)
