"""The commands in docs/labs run as they stand there and still show what the pages say they show."""
import os
import pathlib
import re
import subprocess
import unittest

BINARY = pathlib.Path(os.environ["NANOVLLM"])
ROOT = pathlib.Path(__file__).resolve().parent.parent
# What depends on the machine: some of the sizes, and of a result line all but its counts.
VARIABLE = re.compile(r'(?m)^((?:device|bits a weight|weights in memory|layouts|loaded in) +|\{"index":\d+,)(.*?)((?:,"num_prompt_tokens":.*)?)$')
LEFT_OUT = "...\n"  # one line or more


# The table of `bench latency`, and what was asked for.
LATENCY = re.compile(r"; (\d+) requests, (\d+) tokens in, (\d+) out; median of 3\n"
                     r"latency +([\d.]+ m?s)\nlatency, p99 +([\d.]+ m?s)\nprefill +([\d.]+) tok/s\ndecode +([\d.]+) tok/s\n")


def number(text):
    """Milliseconds become seconds."""
    value, *unit = text.split()
    return float(value) / (1000 if unit == ["ms"] else 1)


def run_script(script):
    """What a page's commands print, of this build's binary whichever they name."""
    script = re.sub(r"build(-cuda)?/nanovllm", str(BINARY), script)
    result = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    if result.returncode != 0:
        raise AssertionError(f"{script}: {result.stderr}")
    return result.stderr + result.stdout


class Labs(unittest.TestCase):
    def run_lab(self, number):
        """A lab's page, and what its command prints of this build."""
        page, = (ROOT / "docs" / "labs").glob(f"{number}-*.md")
        text = page.read_text(encoding="utf-8")
        script, = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        return text, run_script(script)

    def assert_shows(self, page, shown):
        """Line by line the same but for what is variable, and for what the page leaves out."""
        page, shown = (VARIABLE.sub(r"\1*\3", text) for text in (page, shown))
        if LEFT_OUT not in page:
            self.assertEqual(page, shown)
        pattern = r"(?:.+\n)+".join(map(re.escape, page.split(LEFT_OUT)))
        self.assertIsNotNone(re.fullmatch(pattern, shown), f"{page}\nis not what is shown:\n{shown}")

    def test_what_commands_show_is_what_the_pages_say(self):
        for number, least in ((1, 5), (2, 10), (3, 13), (4, 16)):
            text, shown = self.run_lab(number)
            page, = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
            self.assertGreaterEqual(page.count("\n"), least, number)
            with self.subTest(lab=number):
                self.assert_shows(page, shown)

    def test_a_line_more_or_less_or_another_is_found(self):
        shown = "step 0: a\nstep 1: b\ndevice  cpu\nstep 2: c\n"
        for page in (shown, "step 0: a\n...\nstep 2: c\n", "step 0: a\nstep 1: b\ndevice  cuda\nstep 2: c\n", "step 0: a\n...\n"):
            self.assert_shows(page, shown)
        for page in ("step 0: a\nstep 1: b\ndevice  cpu\n", "step 0: a\nstep 1: b\nstep 2: c\n", shown + "step 3: d\n", shown + "...\n",
                     "step 0: a\n...\nstep 3: c\n", "...\nstep 0: a\nstep 1: b\ndevice  cpu\nstep 2: c\n", shown.replace("b", "x")):
            with self.assertRaises(AssertionError):
                self.assert_shows(page, shown)

    def test_the_table_of_samplers_shows_what_the_page_says(self):  # how much exactly depends on how a machine rounds
        page, shown = self.run_lab(5)
        page = re.findall(r"^\| (\d+)(?: \(all\))? \| (\d+) \| (\d+) \| (.*) \|$", page, re.MULTILINE)
        shown = [row.split(" ", 3) for row in shown.splitlines()]
        self.assertEqual([row[0] for row in shown], [row[0] for row in page])
        texts, tokens = zip(*((int(row[1]), int(row[2])) for row in shown))
        self.assertEqual(texts[0], 1)
        self.assertGreater(min(texts[1:]), 40)
        self.assertEqual(list(tokens), sorted(tokens))

    def test_steps_with_drafts_give_one_token_more_than_were_right(self):  # how many were drafted depends on the clock
        page, shown = self.run_lab(7)
        self.assertGreater(self.right_drafts(page), 0)
        for _ in range(20):  # a busy machine's clock may say that drafts don't pay
            if self.right_drafts(shown) > 0:
                return
            _, shown = self.run_lab(7)
        self.fail("no draft was right")

    def right_drafts(self, lines):
        steps = [(int(right), int(drafted), text.count("|") + 1) for right, drafted, text in re.findall(r"^(\d+) of (\d+): (.*)$", lines, re.MULTILINE)]
        self.assertEqual(sum(count for _, _, count in steps), 36)
        for right, drafted, count in steps:
            self.assertLessEqual(right, drafted)
            self.assertEqual(count, right + 1)
        return sum(right for right, _, _ in steps)

    def test_latencies_are_those_of_their_tokens_and_graphs_are_the_faster(self):
        page, shown = self.run_lab(6)
        for text, tolerance in ((page, 0.01), (shown, 0.5)):  # medians of other runs, on a machine that others use
            tables = [tuple(map(number, table)) for table in LATENCY.findall(text)]
            self.assertEqual(len(tables), 2, text)
            for requests, tokens_in, tokens_out, latency, worst, prefill, decode in tables:
                self.assertEqual((requests, tokens_in, tokens_out), (8, 32, 256))
                self.assertGreaterEqual(worst, latency)
                of_its_tokens = requests * (tokens_in / prefill + (tokens_out - 1) / decode)
                self.assertAlmostEqual(latency / of_its_tokens, 1, delta=tolerance)
            if " on cuda " in text:
                self.assertGreater(tables[0][-1], tables[1][-1], "decode with graphs, and without")


if __name__ == "__main__":
    unittest.main()
