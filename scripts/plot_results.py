#!/usr/bin/env python3
"""Draws docs/measurements/results.json: each of its charts becomes docs/images/NAME.svg.

Bars of a case are measured against the longest of that case, as cases differ a hundredfold; the figures stand beside them.
usage: plot_results.py [FOLDER]      FOLDER instead of docs/images
"""
import html
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, NAME_WIDTH, FIGURE_WIDTH = 760, 210, 80  # pixels
BAR, GAP, TOP = 15, 12, 62
COLORS = ["#0969da", "#bf8700", "#8250df"]
STYLE = ("text{font:13px system-ui,'Noto Sans','DejaVu Sans',sans-serif;fill:#1f2328}.title{font-weight:600;font-size:15px}"
         "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}")


def text(x, y, content, extra=""):
    return f'<text x="{x}" y="{y}"{extra}>{html.escape(content)}</text>'


def draw(chart):
    series, cases = chart["series"], chart["cases"]
    height = TOP + len(cases) * (len(series) * BAR + GAP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
             f"<style>{STYLE}</style>", text(0, 18, chart["title"], ' class="title"')]
    for i, name in enumerate(series):
        parts.append(f'<rect x="{NAME_WIDTH + 150 * i}" y="32" width="12" height="12" fill="{COLORS[i]}"/>')
        parts.append(text(NAME_WIDTH + 150 * i + 18, 43, name))
    y = TOP
    for case in cases:
        middle = y + len(series) * BAR / 2 + 4
        parts.append(text(NAME_WIDTH - 10, middle, case["name"], ' text-anchor="end"'))
        longest = max(case["values"])
        for i, value in enumerate(case["values"]):
            width = (WIDTH - NAME_WIDTH - FIGURE_WIDTH) * value / longest
            parts.append(f'<rect x="{NAME_WIDTH}" y="{y + 1}" width="{width:.1f}" height="{BAR - 2}" fill="{COLORS[i]}"/>')
            parts.append(text(round(NAME_WIDTH + width + 6, 1), y + BAR - 3, f"{value:,}"))
            y += BAR
        y += GAP
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    charts = json.loads((ROOT / "docs" / "measurements" / "results.json").read_text(encoding="utf-8"))
    for name, chart in charts.items():
        (folder / f"{name}.svg").write_text(draw(chart), encoding="utf-8")


if __name__ == "__main__":
    main()
