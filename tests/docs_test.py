"""Links in the documents lead somewhere, and their pictures are what the scripts draw of what was recorded."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unicodedata
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page):
    """Of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        kept = (c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LNM")
        yield "".join(kept).replace(" ", "-")


class Docs(unittest.TestCase):
    def test_links_lead_somewhere(self):
        num_links = 0
        for page in PAGES:
            for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
                if re.match(r"\w+:", link):
                    continue
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                self.assertTrue(target.exists(), f"{page.name}: {link}")
                if anchor:
                    self.assertIn(anchor, set(anchors(target)), f"{page.name}: {link}")
                num_links += 1
        self.assertGreater(num_links, 50)

    def test_plots_show_the_recorded_results(self):
        names = json.loads((ROOT / "docs/measurements/results.json").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, ROOT / "scripts/plot_results.py", folder], check=True)
            for name in names:
                drawn = (pathlib.Path(folder) / f"{name}.svg").read_text(encoding="utf-8")
                self.assertEqual(drawn, (ROOT / f"docs/images/{name}.svg").read_text(encoding="utf-8"), name)

    def test_plotted_figures_stand_in_the_measurements(self):
        measured = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/measurements").glob("*.md"))
        for chart in json.loads((ROOT / "docs/measurements/results.json").read_text(encoding="utf-8")).values():
            for case in chart["cases"]:
                for value in case["values"]:
                    self.assertRegex(measured, rf"(?<![\d.]){re.escape(f'{value:,}')}(?![\d.]*\d)", case["name"])

    def test_the_terminal_shows_what_was_recorded(self):
        with tempfile.NamedTemporaryFile() as file:
            subprocess.run([sys.executable, ROOT / "scripts/record_terminal.py", "draw", ROOT / "docs/images/demo.json", file.name], check=True)
            self.assertEqual(file.read().decode(), (ROOT / "docs/images/demo.svg").read_text(encoding="utf-8"))
        commands = [entry["command"] for entry in json.loads((ROOT / "docs/images/demo.json").read_text(encoding="utf-8"))["commands"]]
        self.assertEqual(commands, (ROOT / "docs/images/demo.txt").read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    unittest.main()
