#!/usr/bin/env python3
"""Records commands in a terminal, and draws a recording as an SVG that plays once.

usage: record_terminal.py record OUT.json COMMAND...     runs each command, as typed, in a terminal of its own
       record_terminal.py draw IN.json OUT.svg
The README's: scripts/record_terminal.py record docs/images/demo.json "$(cat docs/images/demo.txt)" takes one command a line.
"""
import fcntl
import html
import json
import os
import pty
import re
import struct
import sys
import termios
import time

COLUMNS, ROWS = 100, 24
TYPING = 0.012  # seconds a character
PAUSE = 0.8  # seconds behind a command that is typed, and behind what it printed
CELL_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 19, 14  # pixels
COLORS = ["#586069", "#f97583", "#85e89d", "#ffea7f", "#79b8ff", "#b392f0", "#39c5cf", "#e1e4e8"]
ESCAPE = re.compile(r"\x1b\[([\d;]*)([A-Za-z])|\x1b.|[\r\n]|[^\x1b\r\n]")


def run(command):
    """[seconds, text] as the command prints it."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp("bash", ["bash", "-c", command])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    start, events, data = time.monotonic(), [], b""
    while True:
        try:
            read = os.read(terminal, 65536)
        except OSError:  # how a terminal ends whose program has ended
            break
        data += read
        try:
            text, data = data.decode(), b""
        except UnicodeDecodeError:  # in the middle of a character
            continue
        events.append([round(time.monotonic() - start, 3), text])
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        sys.exit(f"{command} failed: {''.join(text for _, text in events)}")
    return events


def record(path, commands):
    recorded = [{"command": command, "events": run(command)} for command in commands]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"columns": COLUMNS, "rows": ROWS, "commands": recorded}, file, ensure_ascii=False, indent=0)


class Screen:
    """Endless paper: what each cell showed last, and since when."""

    def __init__(self, columns):
        self.columns = columns
        self.cells = {}  # (row, column): (character, style, seconds)
        self.row = self.column = 0
        self.style = ("", "")  # weight, colour
        self.moves = [(0.0, 0)]  # seconds, row: when the last row was begun

    def new_line(self, seconds):
        self.row, self.column = self.row + 1, 0
        self.moves.append((seconds, self.row))

    def write(self, text, seconds):
        for match in ESCAPE.finditer(text):
            character, (codes, order) = match.group(), match.groups()
            if order == "m":
                self.set_style(codes)
            elif order == "K":
                for column in range(self.column, self.columns):
                    self.cells.pop((self.row, column), None)
            elif order or character[0] == "\x1b":
                continue
            elif character == "\r":
                self.column = 0
            elif character == "\n":
                self.new_line(seconds)
            else:
                width = 2 if "\u2e80" <= character <= "\uffef" else 1
                if self.column + width > self.columns:
                    self.new_line(seconds)
                self.cells[self.row, self.column] = (character, self.style, seconds)
                self.column += width

    def set_style(self, codes):
        weight, color = self.style
        for code in (int(code or 0) for code in codes.split(";")):
            if code == 0:
                weight, color = "", ""
            elif code in (1, 2):
                weight = "bd"[code - 1]
            elif 30 <= code <= 37:
                color = COLORS[code - 30]
        self.style = (weight, color)

    def runs(self):
        """(row, column, text, style, seconds) of neighbours that came together."""
        run = None
        for (row, column), (character, style, seconds) in sorted(self.cells.items()):
            if run and run[0] == row and run[1] + len(run[2]) == column and run[3:] == [style, seconds]:
                run[2] += character
            else:
                if run:
                    yield run
                run = [row, column, character, style, seconds]
        if run:
            yield run


def play(recording):
    """The screen after all commands, and how long that took."""
    screen, now = Screen(recording["columns"]), 0.3
    for entry in recording["commands"]:
        screen.write("\x1b[32m$\x1b[0m ", now)
        for character in entry["command"]:
            now += TYPING
            screen.write(character, now)
        now += PAUSE
        screen.write("\r\n", now)
        for seconds, text in entry["events"]:
            screen.write(text.replace("\r\n", "\n").replace("\n", "\r\n"), round(now + seconds, 3))
        now += (entry["events"][-1][0] if entry["events"] else 0) + PAUSE
    return screen, now


def draw(recording):
    screen, total = play(recording)
    rows = recording["rows"]
    width = recording["columns"] * CELL_WIDTH + 2 * MARGIN
    height = rows * LINE_HEIGHT + 2 * MARGIN
    # Where the paper stands, from each moment on: the last row is the lowest of the window.
    steps = {max(0, row - rows + 1) * LINE_HEIGHT: seconds for seconds, row in reversed(screen.moves)}
    lowest = max(steps)
    frames = "".join(f"{min(100, 100 * seconds / total):.2f}%{{transform:translateY({-y}px)}}" for y, seconds in sorted(steps.items()))
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" '
             'role="img" aria-label="nanovllm in a terminal">',
             "<style>"
             "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d1d5da;"
             "white-space:pre;animation:show 1ms backwards}"
             ".b{font-weight:bold;fill:#fff}.d{fill:#8b949e}"
             "@keyframes show{from{opacity:0}}"
             f"@keyframes roll{{{frames}}}"
             f".paper{{transform:translateY({-lowest}px);animation:roll {total:.2f}s step-end backwards}}"
             "@media (prefers-reduced-motion:reduce){text,.paper{animation:none}}"
             "</style>",
             f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#1b1f23"/>',
             f'<svg x="{MARGIN}" y="{MARGIN}" width="{width - 2 * MARGIN:.0f}" height="{rows * LINE_HEIGHT}"><g class="paper">']
    for row, column, text, (weight, color), seconds in screen.runs():
        if not text.strip():
            continue
        style = f"animation-delay:{seconds:.2f}s" + (f";fill:{color}" if color else "")
        kind = f' class="{weight}"' if weight else ""
        parts.append(f'<text x="{column * CELL_WIDTH:.1f}" y="{row * LINE_HEIGHT + 14}" textLength="{len(text) * CELL_WIDTH:.1f}"'
                     f'{kind} style="{style}">{html.escape(text)}</text>')
    parts.append("</g></svg></svg>")
    return "\n".join(parts) + "\n"


def main():
    if len(sys.argv) >= 4 and sys.argv[1] == "record":
        record(sys.argv[2], [line for argument in sys.argv[3:] for line in argument.splitlines() if line])
    elif len(sys.argv) == 4 and sys.argv[1] == "draw":
        with open(sys.argv[2], encoding="utf-8") as file:
            svg = draw(json.load(file))
        with open(sys.argv[3], "w", encoding="utf-8") as file:
            file.write(svg)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
