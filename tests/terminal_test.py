"""What a person at a terminal sees: a conversation, progress and colours, driven through a pseudo-terminal."""
import codecs
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

BINARY = os.environ["NANOVLLM"]
MODEL = os.environ["NANOVLLM_MODEL"]
SPEED = re.compile(r"\[(\d+) tokens, [\d.]+ tok/s, first after [\d.]+ s(, stopped|, cut off at max_tokens=12)?\]")
SLOWLY = ["--ignore-eos", "--dtype", "float32", "--num-threads", "1"]
WORD = 4087  # the token " conversation"
LONG_WORDS = ["--logit-bias", f"{WORD}:100"]  # it again and again: more text than a terminal holds that nobody reads
# ChatML, but a message that says "show" is answered with an error that shows what the template was given, and one that
# begins with "repeat" with one that shows the message.
TEMPLATE = """{%- if messages[-1].content.startswith('repeat') %}{{ raise_exception(messages[-1].content | tojson) }}{% endif %}
{%- if messages[-1].content == 'show' %}{{ raise_exception((messages[:-1] | map(attribute='role') | join(' '))
~ '; system: ' ~ (messages[0].content if messages[0].role == 'system' else 'none') ~ '; eos: ' ~ eos_token) }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}"""


def spelled(text):
    """As tokenizers of bytes write a text: characters that are seen for all bytes."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return "".join(chr(byte) if byte in seen else chr(256 + hidden.index(byte)) for byte in text.encode())


def model_that_says(folder, text):
    """A copy of the demo model whose token WORD is another text."""
    shutil.copytree(MODEL, folder)
    path = os.path.join(folder, "tokenizer.json")
    with open(path, encoding="utf-8") as file:
        tokenizer = json.load(file)
    model = tokenizer["model"]
    word = next(piece for piece, id in model["vocab"].items() if id == WORD)
    pair = lambda merge: merge.split(" ") if isinstance(merge, str) else merge
    model["merges"] = [merge for merge in model["merges"] if word not in (*pair(merge), "".join(pair(merge)))]
    model["vocab"] = {spelled(text) if piece == word else piece: id for piece, id in model["vocab"].items()}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    return folder


def screen(text):
    """The lines that a terminal of enough columns shows of what it was sent."""
    lines, column = [[]], 0
    for piece in re.findall(r"\x1b\[\w*|[\s\S]", text):
        line = lines[-1]
        if piece == "\n":
            lines.append([])
            column = 0
        elif piece == "\r":
            column = 0
        elif piece == "\b":
            column -= 1
        elif piece == "\x1b[K":
            del line[column:]
        elif not piece.startswith("\x1b"):
            line[column:column + 1] = [piece]
            column += 1
    return ["".join(line) for line in lines]


class Terminal:
    """A program on a pseudo-terminal, or a shell that runs "$@" there with control over jobs."""

    def __init__(self, *args, columns=80, shell="", **environment):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        self.slave = slave
        self.seen = ""  # all that was printed
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a read may end within a character
        self.at = 0  # what was expected so far ends here
        self.process = subprocess.Popen(
            [*(["bash", "-mc", shell, "bash"] if shell else []), BINARY, *args], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**{k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "EDITRC")}, "TERM": "xterm", "LC_ALL": "C.UTF-8", "HOME": "/nonexistent", **environment},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def resize(self, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))

    def type(self, keys):
        os.write(self.master, keys.encode())

    def read(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            self.seen += self.decoder.decode(os.read(self.master, 4096))
            return True
        return False

    def expect(self, pattern, seconds=300):
        """Waits until what was printed since the last match matches; returns the match."""
        deadline = time.monotonic() + seconds
        while True:
            match = re.compile(pattern).search(self.seen, self.at)
            if match:
                self.at = match.end()
                return match
            if time.monotonic() > deadline or (not self.read(0.5) and self.process.poll() is not None):
                raise AssertionError(f"no {pattern!r} in {self.seen[self.at:]!r}, exit {self.process.poll()}")

    def prompt(self, pattern=r"(^|\n|\r)> "):
        """Waits for the prompt, and until keys go to the line editor and no longer to the kernel."""
        self.expect(pattern)
        deadline = time.monotonic() + 300
        while termios.tcgetattr(self.slave)[3] & termios.ICANON:
            if time.monotonic() > deadline:
                raise AssertionError(f"the prompt takes no keys after {self.seen!r}")
            time.sleep(0.01)

    def expect_end(self, status, seconds=600, pause=0):
        """Reads all output until the program ends, with this exit status."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None or self.read(0):
            self.read(0.1)
            time.sleep(pause)
            if time.monotonic() > deadline:
                break
        if self.process.poll() != status:
            raise AssertionError(f"exit {self.process.poll()} instead of {status} after {self.seen[self.at:]!r}")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


class Chat(unittest.TestCase):
    def chat(self, *args, long=False, model=MODEL, **environment):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        template = os.path.join(folder.name, "template.jinja")
        with open(template, "w", encoding="utf-8") as file:
            file.write(TEMPLATE)
        length = [*SLOWLY, *LONG_WORDS] if long else ["--max-tokens", "12"]
        terminal = Terminal("chat", model, "--temperature", "0", "--chat-template", template, *length, *args, **environment)
        self.addCleanup(terminal.close)
        terminal.expect(r"on cpu [^\n]*, temperature 0 \(--temperature\)\. /help lists the commands, Ctrl-D leaves")
        terminal.prompt()
        return terminal

    def begin_answer(self, terminal):
        """Text is shown, and more of it is still to come: there is too much for the terminal before it is read."""
        terminal.type("Tell me a story about a dog.\n")
        terminal.expect("dog\\.\r*\n")
        terminal.expect("[a-z]+ [a-z]+ [a-z]+")

    def test_answers_carry_their_speed_and_the_conversation_goes_on(self):
        terminal = self.chat("--system", "Be kind.")
        for message in ("Tell me a story about a dog.", "And about Grüße 小猫?"):
            terminal.type(message + "\n")
            self.assertEqual(terminal.expect(SPEED.pattern).group(2), ", cut off at max_tokens=12")
            terminal.prompt()
        terminal.type("show\n")
        terminal.expect("system user assistant user assistant; system: Be kind.; eos: <\\|im_end\\|>")
        terminal.prompt()
        terminal.type("/clear\n")
        terminal.expect("\\[the conversation is forgotten, the system message stays\\]")
        terminal.prompt()
        terminal.type("show\n")
        terminal.expect("system; system: Be kind.;")
        terminal.prompt()
        terminal.type("/system Be short.\n")
        terminal.expect("\\[a new conversation with this system message\\]")
        terminal.prompt()
        terminal.type("show\n")
        terminal.expect("system; system: Be short.;")
        terminal.prompt()
        terminal.type("/system\n")
        terminal.expect("\\[a new conversation without a system message\\]")
        terminal.prompt()
        terminal.type("show\n")
        terminal.expect("; system: none;")
        terminal.prompt()
        terminal.type("/clear\n")
        terminal.expect("\\[the conversation is forgotten\\]")
        terminal.prompt()
        terminal.type("/params temperature=0.5 top_k=20\n")
        terminal.expect("temperature=0.5 top_k=20")
        terminal.prompt()
        terminal.type("/quit\n")
        terminal.expect_end(0)

    def test_the_answer_streams_and_ctrl_c_stops_it_alone(self):
        for presses in (1, 5):
            terminal = self.chat(long=True)
            self.begin_answer(terminal)
            self.assertIsNone(SPEED.search(terminal.seen, terminal.at))
            terminal.type("\x03")
            for _ in range(1, presses):  # as signals: with the key, the terminal throws away what it was about to show
                time.sleep(0.01)
                terminal.process.send_signal(signal.SIGINT)
            stopped = terminal.expect(SPEED.pattern)
            self.assertEqual(stopped.group(2), ", stopped")
            self.assertLess(int(stopped.group(1)), 1900)
            terminal.prompt()
            terminal.type("show\n")  # what was said before the stop belongs to the conversation
            terminal.expect("user assistant;")
            terminal.prompt()
            terminal.type("\x04")
            terminal.expect_end(0)

    def test_ctrl_c_at_the_prompt_drops_the_line(self):
        terminal = self.chat()
        terminal.type("half typed")
        terminal.expect("half typed")
        self.expect_dropped(terminal, "\x03")
        terminal.type("/nonsense\x03/help\n")
        terminal.expect(r"\^C\r\n")
        terminal.expect("sampling parameters")
        terminal.prompt()
        terminal.type("\x03\x03\x04")
        terminal.expect_end(0)
        self.assertNotIn("no such command", terminal.seen)

    def test_lines_are_edited_by_characters_and_come_back_from_history(self):
        terminal = self.chat("--system", "x")
        terminal.type("/system ä小b\x7f\x7f\x7fé\n")
        terminal.prompt()
        terminal.type("show\n")
        terminal.expect("system: é;")
        terminal.prompt()
        terminal.type("\x1b[A\x1b[A\x1b[B\n")  # up, up, down: "show"
        terminal.expect("system: é;")
        terminal.prompt()
        terminal.type("\x04")
        terminal.expect_end(0)

    def expect_dropped(self, terminal, keys):
        terminal.type(keys)
        terminal.prompt(r"\^C\r\n> ")

    def expect_message(self, terminal, keys, message):
        terminal.type(keys)
        terminal.expect(": " + re.escape(json.dumps(message, ensure_ascii=False)))
        terminal.prompt()

    def test_a_pasted_text_is_one_message(self):
        terminal = self.chat()
        pasted = "\x1b[200~{}\x1b[201~"
        for newline in ("\r", "\n", "\r\n"):  # what terminals send for one
            text = newline.join(["repeat", "/quit", "", "\tGrüße 小猫\\", '"""', ""])
            self.expect_message(terminal, pasted.format(text) + "\n", 'repeat\n/quit\n\n\tGrüße 小猫\\\n"""')
        self.expect_message(terminal, "repeat a" + pasted.format("b\rc") + pasted.format("d\0") + "\x7ff\n", "repeat ab\ncf")
        self.expect_message(terminal, pasted.format("repeat\r") + "after\n", "repeat\nafter")
        self.expect_message(terminal, "\x1b[A\n", "repeat\nafter")  # as it was, from history
        self.expect_message(terminal, pasted.format("repeat a\\") + "\nb\n", "repeat a\nb")
        many = "".join(f"line {i}\r" for i in range(100))  # more than the terminal shows
        self.expect_message(terminal, pasted.format("repeat\r" + many) + "\n", "repeat\n" + many.replace("\r", "\n")[:-1])
        terminal.type("/system " + pasted.format("Be\rkind.") + "\n")
        terminal.expect("a new conversation with this")
        terminal.prompt()
        terminal.type("show\n")
        terminal.expect(r"system: Be\\nkind\.")
        terminal.prompt()
        terminal.type("\x1b[200~half")
        self.expect_dropped(terminal, "\x03")
        self.expect_dropped(terminal, "\x1b[200~half\x03")
        terminal.type(pasted.format("/help\r") + "\n")  # a line is a command, typed or pasted
        terminal.expect("sampling parameters")
        terminal.prompt()
        terminal.type("\x04")
        terminal.expect_end(0)

    def test_what_is_pasted_during_an_answer_is_one_message(self):
        terminal = self.chat(long=True)
        self.begin_answer(terminal)
        terminal.type("\x1b[200~repeat\rthis\x1b[201~\n")
        terminal.process.send_signal(signal.SIGINT)
        terminal.expect(", stopped\\]")
        terminal.expect('"repeat\\\\nthis"')
        terminal.prompt()

    def test_terminals_that_know_no_marks_are_not_asked_for_them(self):
        for environment in ({"TERM": "dumb"}, {"HOME": self.home_with_editrc("bind -v\n")}):
            terminal = self.chat(**environment)
            terminal.type("repeat this\n")
            terminal.expect('"repeat this"')
            terminal.prompt()
            self.expect_dropped(terminal, "half\x03")
            self.assertNotIn("2004", terminal.seen)
        self.assertIn("\x1b[?2004h", self.chat(HOME=self.home_with_editrc("bind -e\n")).seen)

    def home_with_editrc(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        with open(os.path.join(folder.name, ".editrc"), "w", encoding="utf-8") as file:
            file.write(text)
        return folder.name

    def test_a_message_goes_on_after_a_backslash_and_in_quotes(self):
        terminal = self.chat()
        self.expect_message(terminal, "repeat\\\nthis \\\n\n", "repeat\nthis \n")
        self.assertEqual(terminal.seen.count("... "), 2)
        self.expect_message(terminal, '"""repeat\n/quit\n\\\n"""\n', "repeat\n/quit\n\\")
        terminal.type('"""\nhalf\n')
        terminal.prompt("half\r\n... ")
        self.expect_dropped(terminal, "\x03")
        self.expect_message(terminal, "half\\\n\x03repeat this\n", "repeat this")
        terminal.type('"""\n\x04')
        terminal.expect('the text that begins with """ has no """ at the end of a line')
        terminal.prompt()
        self.expect_message(terminal, "repeat this\n", "repeat this")

    def test_conversations_are_kept_and_found_again(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "kept.json")
            terminal = self.chat("--system", "Be kind.")
            terminal.type("Tell me a story.\n")
            terminal.expect(SPEED.pattern)
            terminal.prompt()
            terminal.type(f"/save {file}\n")
            terminal.expect("\\[the conversation is in ")
            terminal.prompt()
            terminal = self.chat()
            for path, said in ((folder, "not a regular file"), (file, "\\[a conversation of 3 messages\\]")):
                terminal.type(f"/load {path}\n")
                terminal.expect(said)
                terminal.prompt()
            terminal.type("show\n")
            terminal.expect("system user assistant; system: Be kind.;")

    def test_a_stopped_program_goes_on_with_its_prompt(self):
        terminal = self.chat(shell='"$@"; echo stopped; fg')
        terminal.type("\x1a")
        # Where the signal ends the read of a key, that looks like a Ctrl-C: thread sanitizers deliver it so.
        terminal.expect(r"(?s)\x1b\[\?2004l.*stopped\r\n.*\x1b\[\?2004h(\^C\r\n)?> ")
        self.expect_message(terminal, "\x1b[200~repeat\rthis\x1b[201~\n", "repeat\nthis")

    def test_the_terminal_is_left_as_it_was(self):
        probe_master, probe = pty.openpty()
        fresh = termios.tcgetattr(probe)
        os.close(probe)
        os.close(probe_master)
        for leave in ("/quit\n", "\x04", signal.SIGTERM, signal.SIGQUIT):
            terminal = self.chat()
            if isinstance(leave, signal.Signals):
                terminal.process.send_signal(leave)
                terminal.expect_end(-leave)
            else:
                terminal.type(leave)
                terminal.expect_end(0)
            self.assertEqual(termios.tcgetattr(terminal.slave), fresh)
            self.assert_pastes_unmarked(terminal)

    def test_a_termination_signal_ends_the_program_in_the_middle_of_an_answer(self):
        terminal = self.chat(long=True)
        self.begin_answer(terminal)
        terminal.process.send_signal(signal.SIGTERM)
        terminal.expect_end(-signal.SIGTERM)
        self.assert_pastes_unmarked(terminal)
        self.assertTrue(termios.tcgetattr(terminal.slave)[3] & termios.ECHO)

    def test_every_character_arrives_whatever_the_locale(self):
        plain = {name: "" for name in ("LC_ALL", "LC_CTYPE", "LANG")}
        for locale in ({}, {"LANG": "C"}, {"LC_ALL": "POSIX"}, {"LANG": "xx_XX.UTF-8"}, {"LC_CTYPE": "de_DE.ISO-8859-1"}, {"LANG": "C.UTF-8"}):
            terminal = self.chat(**(plain | locale))
            self.expect_message(terminal, "repeat Grüße 小猫x\x7f!\n", "repeat Grüße 小猫!")
            terminal.type("\x04")
            terminal.expect_end(0)

    def answer_of(self, text, *args, tokens=12, **environment):
        """What a terminal is sent for an answer that is `text` again and again."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        terminal = self.chat("--ignore-eos", "--logit-bias", f"{WORD}:100", "--max-tokens", str(tokens), *args,
                             model=model_that_says(os.path.join(folder.name, "model"), text), **environment)
        terminal.type("Hi\n")
        terminal.expect("Hi\r*\n")
        begin = terminal.at
        terminal.expect(r"\[\d+ tokens?, ")
        return terminal.seen[begin:terminal.seen.rindex("\r\n", 0, terminal.at)].replace("\r\n", "\n")

    def test_what_a_model_writes_does_not_steer_the_terminal(self):
        text = "a\x1b[31mb\x9b2Jc\x07\x7f\rd\r\n\te"
        shown = "a\\u001b[31mb\\u009b2Jc\\u0007\\u007f\\u000dd\n\te"
        self.assertEqual(self.answer_of(text, tokens=3), shown * 3)
        with tempfile.TemporaryDirectory() as folder:
            model = model_that_says(os.path.join(folder, "model"), text)
            args = ["generate", model, "-q", "-p", "Hi", "--ignore-eos", "--temperature", "0", "--logit-bias", f"{WORD}:100", "--max-tokens", "3"]
            for more in ([], ["-n", "2", "--temperature", "1"], ["--logprobs", "1"], ["--json"], ["--json", "--logprobs", "1"]):
                terminal = Terminal(*args, *more)
                self.addCleanup(terminal.close)
                terminal.expect_end(0)
                self.assertNotRegex(re.sub(r"\x1b\[[01]m", "", terminal.seen), "[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f]", more)
                self.assertIn("\\u001b[31m", terminal.seen)
                if "--json" in more:  # what is shown is the same JSON
                    self.assertEqual(json.loads(terminal.seen)["text"], text * 3)
            piped = subprocess.run([BINARY, *args], capture_output=True).stdout
            self.assertIn((text * 3).encode(), piped)
            piped = subprocess.run([BINARY, "chat", model, "-m", "Hi", *args[5:]], capture_output=True).stdout
            self.assertEqual(piped, (text * 3).encode() + b"\n")

    def test_lines_of_an_answer_end_between_words(self):
        width = lambda line: sum(2 if character in "小猫" else 1 for character in line)
        for text, columns, expected in (
                (" conversation", 30, [" conversation conversation", *["conversation conversation"] * 5]),
                (" conversation", 27, [" conversation conversation", *["conversation conversation"] * 5]),
                (" conversation", 26, [" conversation", *["conversation conversation"] * 5, "conversation"]),
                (" conversation", 14, [" conversation", *["conversation"] * 11]),
                (" conversation", 13, ["", *["conversation"] * 12]),
                (" conversation", 8, ["", *["convers", "ation"] * 12]),
                ("lang", 11, ["langlangla", "nglanglang", "langlangla", "nglanglang", "langlang"]),
                ("小猫", 12, ["小猫小猫小", "猫小猫小猫"] * 2 + ["小猫小猫"]),
                ("a\n    b  ", 9, ["a", *["    b  a"] * 11, "    b"]),
                ("a\n    b  ", 8, ["a", "    b"] * 12),
                ("\tab cd\n", 14, [*["\tab cd"] * 12, ""]),
                ("\tab cd\n", 13, [*["\tab", "cd"] * 12, ""])):
            shown = screen(self.answer_of(text, columns=columns))
            with self.subTest(text, columns=columns):
                self.assertEqual([line.rstrip(" ") for line in shown], expected)
                self.assertLess(max(width(line.expandtabs(8)) for line in shown), columns)

    def test_an_answer_takes_the_width_that_its_terminal_gets(self):
        terminal = self.chat(long=True, columns=80)
        self.begin_answer(terminal)
        self.assertNotIn("\r\nconversation c\b", terminal.seen)
        terminal.resize(20)
        for _ in range(3):
            terminal.expect("\r\nconversation conver\b{6}\x1b\\[K\r\n")

    def test_keys_are_not_shown_during_an_answer(self):
        terminal = self.chat(long=True)
        self.begin_answer(terminal)
        terminal.type("repeat sooner\n")
        time.sleep(0.2)
        terminal.process.send_signal(signal.SIGINT)
        terminal.expect(", stopped\\]")
        self.assertNotIn("sooner", terminal.seen[:terminal.at])
        terminal.expect("> [^\n]*repeat sooner")  # as if it was typed now
        terminal.expect('"repeat sooner"')
        terminal.prompt()
        self.begin_answer(terminal)
        terminal.type("\x03")
        terminal.expect(", stopped\\]")
        self.assertNotIn("^C", terminal.seen)

    def test_a_line_is_drawn_anew_where_the_terminal_changes(self):
        typed = "repeat " + "many words " * 6 + "小猫"
        for before, after in ((100, 50), (50, 100), (100, 40), (40, 30)):
            terminal = self.chat(columns=before)
            terminal.type(typed)
            terminal.expect("小猫")
            terminal.resize(after)
            rows = (len("> " + typed) + 2) // after
            terminal.expect(re.escape("\r" + (f"\x1b[{rows}A" if rows else "") + "\x1b[J") + "> repeat many")
            terminal.expect("小猫")
            self.expect_message(terminal, "\x7f!\n", typed[:-1] + "!")
            terminal.type("\x04")
            terminal.expect_end(0)

    def test_tab_completes_commands(self):
        terminal = self.chat()
        terminal.type("/h\t\n")
        terminal.expect("sampling parameters")
        terminal.prompt()
        terminal.type("/s")
        terminal.expect("/s")
        terminal.type("\t")
        terminal.expect(r"/save  ?/system *\r\n")
        terminal.expect("> /s")
        terminal.type("y\tBe kind.\n")
        terminal.expect("a new conversation with this system message")
        terminal.prompt()
        terminal.type("show\n")
        terminal.expect("system: Be kind.;")
        terminal.prompt()
        self.expect_message(terminal, "\trepeat\t /h\t\n", "repeat /h")  # no command
        terminal.type("/q\t\n")
        terminal.expect_end(0)

    def assert_pastes_unmarked(self, terminal):
        self.assertEqual(re.findall("\x1b\\[\\?2004([hl])", terminal.seen), ["h", "l"])


class Work(unittest.TestCase):
    BAR = r"\r\x1b\[K{} (█*░*) (\d+)/{} \[\d\d:\d\d, prefill \d+ tok/s, decode \d+ tok/s(?:, [\d:]+ left)?\]"

    def start(self, *args, **kwargs):
        terminal = Terminal(*args, **kwargs)
        self.addCleanup(terminal.close)
        return terminal

    def expect_bar(self, terminal, label, total, columns=80):
        """A bar on one line of which what is done is filled, and what the others have; returns how many are done."""
        line = terminal.expect(self.BAR.format(label, total))
        bar, done = line.groups()
        self.assertEqual(len(bar), min(20, columns - (len(line.group(0)) - len("\r\x1b[K") - len(bar)) - 1))
        self.assertGreaterEqual(bar.count("█"), int(done) * len(bar) // total)
        return int(done)

    def file_of_requests(self, count, long=0, tokens_of_first=0):
        file = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
        self.addCleanup(file.close)
        request = '{"prompt": "Once upon a time"%s}\n'
        first = 1 if tokens_of_first else 0
        file.write(request % f', "sampling_params": {{"max_tokens": {tokens_of_first}}}' * first)
        file.write(request % "" * (count - first) + request % ', "sampling_params": {"max_tokens": 2000}' * long)
        file.flush()
        return file.name

    def test_a_file_of_requests_has_a_bar_that_is_redrawn_in_place(self):
        args = ["generate", MODEL, "--output", "/dev/null", "--ignore-eos", "--input"]
        # Twenty are done soon on any machine, and the others not before Ctrl-C.
        file = self.file_of_requests(20, 380)
        terminal = self.start(*args, file, "--max-num-seqs", "2", "--max-tokens", "2", columns=100)
        done = [self.expect_bar(terminal, "Generating", 400, columns=100)]
        while done[-1] < 20 or len(done) < 5:
            done.append(self.expect_bar(terminal, "Generating", 400, columns=100))
        self.assertEqual(done, sorted(done))
        self.assertNotIn("\n", terminal.seen[:terminal.at])
        terminal.type("\x03")
        terminal.expect_end(130)
        terminal = self.start(*args, self.file_of_requests(3), "--max-tokens", "2")
        terminal.expect_end(0)
        terminal.at = terminal.seen.rindex("\r\x1b[K")
        self.assertEqual(self.expect_bar(terminal, "Generating", 3), 3)
        self.assertEqual(terminal.seen[terminal.at:], "\r\n")

    def test_the_bar_moves_with_tokens(self):
        file = self.file_of_requests(2)
        for prompts in (["--output", "/dev/null", "--input", file], ["--output", "/dev/null", "-p", "Once", "-p", "a", "-n", "2"]):
            for tokens in (40, 1900):  # more where that takes no time
                terminal = self.start("generate", MODEL, *prompts, *SLOWLY, "--max-tokens", str(tokens), "--log-steps", columns=100)
                terminal.expect_end(0, pause=0.01)  # for steps that their log holds up are slower than bars
                drawn = list(re.finditer(self.BAR.format("Generating", 2), terminal.seen))
                moving = [bar for bar in drawn if bar.group(2) == "0"]
                for bar in moving:
                    steps = len(re.findall(r"step \d+: ", terminal.seen[:bar.start()]))
                    self.assertAlmostEqual(bar.group(1).count("█"), 20 * steps / tokens, delta=1)
                self.assertEqual(drawn[-1].groups(), (20 * "█", "2"))
                if len({bar.group(1) for bar in moving}) > 2:
                    break
            else:
                self.fail(terminal.seen)
        for requests, tokens in ((2, 40), (2, 1900), (64, 1900)):
            terminal = self.start("bench", "throughput", MODEL, *SLOWLY[1:], "--num-prompts", str(requests), "--input-len", "8",
                                  "--output-len", str(tokens), columns=100)
            terminal.expect_end(0)
            filled = [bar.count("█") for bar, done in re.findall(self.BAR.format("Benchmark", requests), terminal.seen) if done == "0"]
            self.assertEqual(filled, sorted(filled))
            if len(set(filled)) > 2:
                break
        else:
            self.fail(terminal.seen)

    def test_results_are_never_glued_to_the_bar(self):
        slow = "while IFS= read -r line; do sleep 0.3; cat <<< \"$line\"; done"  # which shows what came before the next bar after it
        for shell in ("", '"$@" | cat', f'"$@" | ({slow})'):
            for tokens in (40, 400, 1900):  # until there is a bar before there are results
                requests = self.file_of_requests(6, tokens_of_first=tokens)
                terminal = self.start("generate", MODEL, "--input", requests, "--max-num-seqs", "1", *SLOWLY, "--max-tokens", "20", columns=100, shell=shell)
                terminal.expect_end(0)
                shown = [line.split("\r\x1b[K")[-1] for line in terminal.seen.split("\r\n")]  # each line in the end
                self.assertEqual(len([line for line in shown if line.startswith('{"index"') and line.endswith("}")]), 6, shown)
                progress = [line for line in shown if line.startswith("Generating ") and re.search(r"(tok/s|left)\]$", line)]
                self.assertIn(" 6/6 [", progress[-1])
                if not shell:  # where results go through a pipe, there may be one every few seconds before
                    self.assertEqual(len(progress), 1, shown)
                self.assertEqual(terminal.seen.count('{"index"'), 6)
                self.assertEqual(len(shown), 6 + len(progress) + 1, shown)
                if "░" in terminal.seen:
                    break
            else:
                self.fail(terminal.seen)

    def test_a_narrow_terminal_has_a_line_cut_to_its_width(self):
        terminal = self.start("generate", MODEL, "--output", "/dev/null", "--input", self.file_of_requests(3), "--max-tokens", "2", columns=40)
        terminal.expect_end(0)
        drawn = [line for line in terminal.seen.rstrip().split("\r\x1b[K")[1:] if line]  # what is written over it erases it first
        self.assertGreater(len(drawn), 0)
        for line in drawn:
            self.assertRegex(line, r"^Generating \d/3 \[")
            self.assertEqual(len(line), 39)

    def test_benchmarks_have_a_bar(self):
        for command, label, total in ((["throughput", "--num-prompts", "64"], "Benchmark", 64), (["latency", "--batch-size", "8"], "Warming up", 8)):
            terminal = self.start("bench", *command, MODEL, "--input-len", "8", "--output-len", "2000")
            for _ in range(2):
                self.expect_bar(terminal, label, total)
            terminal.type("\x03")
            terminal.expect_end(130)

    def test_the_text_of_a_single_prompt_appears_as_it_comes(self):
        args = ["generate", MODEL, "-p", "Once upon a time", "--temperature", "0", *SLOWLY, "--max-tokens"]
        terminal = self.start(*args, "1900", *LONG_WORDS)
        terminal.expect("\x1b\\[1mOnce upon a time\x1b\\[0m[^\x1b]* [a-z]+ [a-z]+ ")
        terminal.type("\x03")
        terminal.expect_end(130)
        self.assertIn("0 done, 1 cut short, 0 not begun", terminal.seen)
        terminal = self.start(*args, "20")
        terminal.expect_end(0)
        plain = re.sub(r"\x1b\[\dm", "", terminal.seen)
        self.assertNotIn("\x1b", plain)  # no bar between the words
        piped = subprocess.run([BINARY, *args, "20", "-q"], capture_output=True, text=True)
        text, remark = plain.replace("\r\n", "\n").rsplit("nanovllm:", 1)
        self.assertEqual(text.rstrip("\n"), piped.stdout.rstrip("\n"))
        self.assertIn("cut off", remark)


class Text(unittest.TestCase):
    """What is typed to `nanovllm tokenize`."""

    def tokenize(self, *args):
        terminal = Terminal("tokenize", MODEL, *args)
        self.addCleanup(terminal.close)
        while terminal.process.poll() is None and not self.catches_ctrl_c(terminal.process.pid):
            time.sleep(0.01)
        return terminal

    @staticmethod
    def catches_ctrl_c(pid):
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            caught = re.search(r"^SigCgt:\t([0-9a-f]+)$", status.read(), re.MULTILINE).group(1)
        return int(caught, 16) >> (signal.SIGINT - 1) & 1 == 1

    def test_one_ctrl_d_ends_it(self):
        terminal = self.tokenize()
        terminal.type("Once upon\na time\n\x04")
        ids = json.loads(terminal.expect(r"\[[\d,]+\]\s").group())
        terminal.expect_end(0, seconds=60)
        piped = subprocess.run([BINARY, "tokenize", MODEL], input="Once upon\na time\n", capture_output=True, text=True, timeout=60)
        self.assertEqual(ids, json.loads(piped.stdout))

    def test_ctrl_c_is_told(self):
        for typed in ("", "Once upon\n", "Once"):
            terminal = self.tokenize()
            terminal.type(typed + "\x03")
            # While the model is opened it ends at once, and says what a signal's handler can say.
            terminal.expect("nanovllm:(\x1b\\[0m)? interrupted(; what was written is whole, and what was running is lost)?\r\n")
            terminal.expect_end(130, seconds=60)


class Colours(unittest.TestCase):
    def pieces(self, **environment):
        terminal = Terminal("tokenize", MODEL, "--show", "Once upon a time\n\x1b", **environment)
        self.addCleanup(terminal.close)
        terminal.expect_end(0)
        return terminal.seen

    def test_pieces_are_coloured_on_a_terminal(self):
        shown = self.pieces()
        colours = re.findall(r"\x1b\[(3[1-6])m", shown)
        self.assertGreaterEqual(len(colours), 4)
        self.assertTrue(all(a != b for a, b in zip(colours, colours[1:])), "neighbours differ")
        plain = re.sub(r"\x1b\[\d+m", "", shown)
        self.assertNotIn("\x1b", plain)  # the text's own escape character is not sent on
        piped = subprocess.run([BINARY, "tokenize", MODEL, "--show", "Once upon a time\n\x1b"], capture_output=True, text=True)
        self.assertEqual(plain.replace("\r\n", "\n"), piped.stdout)

    def test_no_color_is_respected(self):
        self.assertNotIn("\x1b", self.pieces(NO_COLOR="1"))


if __name__ == "__main__":
    unittest.main()
