"""The commands in docs/labs run as they stand there and still show what the pages say they show."""
import os
import pathlib
import re
import subprocess
import unittest

BINARY = pathlib.Path(os.environ["NANOVLLM"])
ROOT = pathlib.Path(__file__).resolve().parent.parent


class Labs(unittest.TestCase):
    def test_every_lab_runs_and_prints_its_steps(self):
        pages = sorted((ROOT / "docs" / "labs").glob("[0-9]-*.md"))
        self.assertEqual(len(pages), 6)
        for page in pages:
            text = page.read_text(encoding="utf-8")
            for script in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
                script = re.sub(r"build(-cuda)?/nanovllm", str(BINARY), script)
                result = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
                self.assertEqual(result.returncode, 0, f"{page.name}: {result.stderr}")
                # Which steps there are depends on the engine alone, never on the processor: they must be the page's.
                steps = [line for line in text.splitlines() if re.match(r"step \d+: ", line)]
                for line in steps:
                    self.assertIn(line, result.stderr.splitlines(), page.name)


if __name__ == "__main__":
    unittest.main()
