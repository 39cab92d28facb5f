"""The lines that docs/walkthrough.md quotes stand in the sources, its commands show what it says, and both languages agree.
CONTRIBUTING.md shows a family of models as it is."""
import os
import pathlib
import re
import unittest

import labs_test

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("walkthrough.md", "walkthrough.zh-CN.md")}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUM_STOPS = 12
NUM_LINES = 5
# What depends on the engine alone, never on the processor: steps, sizes, and the counts of a result line.
FIXED = re.compile(r'^(step \d+: .*|(?:vocabulary|max_model_len|KV cache|full-length requests) .*)$'
                   r'|^\{("index":\d+),.*,("num_prompt_tokens":.*)\}$', re.MULTILINE)


def runs_of(lines):
    """The quoted lines, cut where "..." leaves some out."""
    runs = [[]]
    for line in lines:
        if line == "...":
            runs.append([])
        else:
            runs[-1].append(line)
    return runs


def find(run, source, begin):
    """Where `run` stands in `source` from line `begin` on; None where it does not."""
    places = range(begin, len(source) - len(run) + 1)
    return next((i for i in places if source[i:i + len(run)] == run), None)


class Walkthrough(unittest.TestCase):
    def test_each_stop_quotes_five_lines_of_one_source(self):
        text = PAGES["walkthrough.md"]
        quotes = [block for language, block in BLOCK.findall(text) if language == "cpp"]
        self.assertEqual(len(quotes), NUM_STOPS)
        for quote in quotes:
            name, *lines = quote.splitlines()
            path = ROOT / name.removeprefix("// ")
            source = path.read_text(encoding="utf-8").splitlines()
            self.assertEqual(sum(line != "..." for line in lines), NUM_LINES, name)
            begin = 0
            for run in runs_of(lines):
                place = find(run, source, begin)
                self.assertIsNotNone(place, f"{name} has no lines such as these behind line {begin}:\n" + "\n".join(run))
                begin = place + len(run)

    def test_the_family_that_contributing_shows_is_a_whole_file(self):
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("\n   ", "\n")
        [quote] = [block for language, block in BLOCK.findall(text) if language == "cpp"]
        name, source = quote.split("\n", 1)
        self.assertEqual(source, (ROOT / name.removeprefix("// ")).read_text(encoding="utf-8"))

    def test_each_stop_names_its_neighbours_and_asks(self):
        for page, words in (("walkthrough.md", ("nano-vLLM:", "vLLM:", "**Question:**")),
                            ("walkthrough.zh-CN.md", ("nano-vLLM：", "vLLM：", "**问题：**"))):
            stops = re.split(r"^### (?=\d+\. )", PAGES[page], flags=re.MULTILINE)[1:]
            self.assertEqual([stop.split(".")[0] for stop in stops], [str(i + 1) for i in range(NUM_STOPS)], page)
            for stop in stops:
                for word in words:
                    self.assertIn(word, stop, page)

    def test_paths_of_ours_exist(self):
        for page, text in PAGES.items():
            for path in re.findall(r"`(src/[\w/.]+)`", text):
                self.assertTrue((ROOT / path).exists(), f"{page}: {path}")

    def test_both_languages_show_the_same_code_and_runs(self):
        english, chinese = (BLOCK.findall(text) for text in PAGES.values())
        self.assertEqual(english, chinese)

    def test_commands_show_what_stands_below_them(self):
        blocks = BLOCK.findall(PAGES["walkthrough.md"])
        num_runs = 0
        for (language, script), (kind, expected) in zip(blocks, blocks[1:] + [("", "")]):
            if language != "sh":
                continue
            shown = FIXED.findall(labs_test.run_script(script))
            if kind != "text":
                continue  # of a GPU
            fixed = FIXED.findall(expected)
            self.assertGreaterEqual(len(fixed), 4, script)
            begin = 0
            for line in fixed:
                self.assertIn(line, shown[begin:], script)
                begin = shown.index(line, begin) + 1
            num_runs += 1
        self.assertEqual(num_runs, 5)  # the request's own, and those of four questions


if __name__ == "__main__":
    unittest.main()
