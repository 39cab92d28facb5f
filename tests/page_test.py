#!/usr/bin/env python3
"""The page to chat with, in headless Chromium: a server of this test plays the API and the page's files are served as
the binary serves them, with the policy of src/server/page.cc and below a prefix.

Exit status 77 (a skipped test) where there is no Chromium, or only a snap of it, which sees no temporary folders. With
NANOVLLM_SCREENSHOTS set to a folder, what was seen is written there.
"""
import base64
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "src" / "server" / "page"
POLICY = re.search(r"kSecurityPolicy =(.*?);\n", (ROOT / "src" / "server" / "page.cc").read_text(), re.DOTALL)[1]
POLICY = "".join(re.findall(r'"(.*?)"', POLICY))
TYPES = {"": ("index.html", "text/html"), "style.css": ("style.css", "text/css"), "app.js": ("app.js", "text/javascript")}
CODE = "Here:\n\n```python\nprint(\"a long line of code that no phone can show as a whole: it is scrolled\")\n```\n\n"
ANSWERS = {  # by the first word of the message: pieces of (reasoning, content)
    "hello": [("", "Hel"), ("", "lo **you**, `x < 1`.\n\nSecond "), ("", "paragraph.")],
    "think": [("First I ", ""), ("think.", ""), ("", CODE), ("", "<img src=x onerror=alert(1)> é🙂")],
}


def find_chromium():
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        path = shutil.which(name)
        if not path:
            continue
        real = pathlib.Path(path).resolve()
        is_snap = real.name == "snap" or "snap" in real.parts or b"/snap/" in real.read_bytes()[:4096]
        if not is_snap:
            return path
    return None


class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    key = None
    model = "demo"
    requests = []
    aborted = threading.Event()

    def log_message(self, *_):
        pass

    def reply(self, status, body, content_type="application/json", **headers):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, message):
        self.reply(status, json.dumps({"error": {"message": message, "type": "X", "param": None, "code": status}}).encode())

    def is_allowed(self):
        if self.key is None or self.headers["Authorization"] == f"Bearer {self.key}":
            return True
        self.refuse(401, "Unauthorized")
        return False

    def do_GET(self):
        name = self.path.removeprefix("/prefix/")
        if name in TYPES:
            file, content_type = TYPES[name]
            self.reply(200, (PAGE / file).read_bytes(), content_type + "; charset=utf-8", Content_Security_Policy=POLICY)
        elif name == "v1/models":
            if self.is_allowed():
                self.reply(200, json.dumps({"object": "list", "data": [{"id": Api.model, "max_model_len": 4096}]}).encode())
        else:
            self.refuse(404, "Not Found")

    def send_event(self, text):
        data = text.encode()
        # In halves, so that events and characters arrive in pieces.
        for half in (data[: len(data) // 2], data[len(data) // 2 :]):
            if half:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(half), half))
                self.wfile.flush()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.is_allowed():
            return
        Api.requests.append(body)
        if body["model"] != Api.model:
            return self.refuse(404, "The model does not exist.")
        word = body["messages"][-1]["content"].split()[0]
        if word == "bad":
            return self.refuse(400, "temperature must be at least 0.")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def delta(finish_reason=None, **fields):
            choice = {"index": 0, "delta": fields, "finish_reason": finish_reason}
            self.send_event(f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}\n\n")

        self.send_event(": a comment\n\n")
        delta(role="assistant", content="")
        if word == "slow":
            try:
                while True:
                    delta(content="tick ")
                    time.sleep(0.02)
            except OSError:
                return Api.aborted.set()
        for reasoning, content in ANSWERS.get(word, [("", "Part")]):
            delta(**({"reasoning": reasoning, "reasoning_content": reasoning} if reasoning else {"content": content}))
        if word == "cut":
            self.close_connection = True
            return
        if word == "die":
            self.send_event('data: {"error": {"message": "The engine died.", "code": 500}}\n\n')
        delta(finish_reason="length" if word == "long" else "stop")
        self.send_event('data: {"choices": [], "usage": {"total_tokens": 3}}\n\n')
        self.send_event("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # a browser that stops an answer closes its connection


class Browser:
    """Chromium over the DevTools protocol: JSON and a zero byte a message, through two pipes."""

    def __init__(self, chromium, folder):
        reads, self.to = os.pipe()
        self.fro, writes = os.pipe()
        command = f'exec "$@" 3<&{reads} 4>&{writes}'
        self.process = subprocess.Popen(
            ["bash", "-c", command, "-", chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-background-networking", "--remote-debugging-pipe",
             f"--user-data-dir={folder}"],
            pass_fds=(reads, writes), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(reads)
        os.close(writes)
        self.buffer, self.number, self.session, self.problems = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        os.close(self.to)
        os.close(self.fro)

    def receive(self):
        while b"\0" not in self.buffer:
            data = os.read(self.fro, 1 << 16)
            assert data, "Chromium has gone"
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def send(self, message):
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")

    def call(self, method, **params):
        self.number += 1
        number = self.number
        self.send({"id": number, "method": method, "params": params})
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.note(answer)

    def note(self, event):
        name, params = event.get("method"), event.get("params", {})
        if name == "Runtime.exceptionThrown" or (name == "Runtime.consoleAPICalled" and params["type"] == "error"):
            self.problems.append(params)
        # Refused requests are what some tests are about.
        if name == "Log.entryAdded" and params["entry"]["level"] == "error" and params["entry"]["source"] != "network":
            self.problems.append(params["entry"])
        if name == "Page.javascriptDialogOpening":
            self.number += 1
            self.send({"id": self.number, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}})

    def js(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (expression, result)
        return result["result"].get("value")

    def wait(self, expression, seconds=20):
        deadline = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < deadline, (expression, self.js("document.body.innerText"))
            time.sleep(0.02)

    def press(self, key, text="", modifiers=0):
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text if kind == "keyDown" else "",
                      windowsVirtualKeyCode=codes[key], modifiers=modifiers)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def screen(self, width, height, mobile=False, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def screenshot(self, name):
        folder = os.environ.get("NANOVLLM_SCREENSHOTS")
        if folder:
            data = self.call("Page.captureScreenshot", format="png")["data"]
            pathlib.Path(folder, name + ".png").write_bytes(base64.b64decode(data))


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(("127.0.0.1", 0), Api)
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()
        cls.url = f"http://127.0.0.1:{cls.server.server_address[1]}/prefix/"
        cls.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        cls.browser = Browser(CHROMIUM, cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.server.shutdown()
        cls.server.server_close()
        cls.folder.cleanup()

    def setUp(self):
        Api.key, Api.model = None, "demo"
        Api.requests.clear()
        Api.aborted.clear()
        self.browser.problems.clear()
        self.browser.screen(1200, 800)
        self.open()
        self.browser.js("localStorage.clear(), sessionStorage.clear()")
        self.open()
        self.browser.wait("$('model').textContent === 'demo'")

    def tearDown(self):
        self.assertEqual(self.browser.problems, [])

    def open(self):
        self.browser.js("window.isOld = true")
        self.browser.call("Page.navigate", url=self.url)
        self.browser.wait("!window.isOld && document.readyState === 'complete'")

    def send(self, text, wait=True):
        self.browser.js("$('input').focus()")
        self.browser.type(text)
        self.browser.press("Enter", "\r")
        if wait:
            self.browser.wait("$('send').textContent === 'Send'")

    def last(self, selector):
        return self.browser.js(f"Array.from(document.querySelectorAll('.message {selector}')).at(-1)?.innerText")

    def test_shows_an_answer_as_it_comes(self):
        self.assertEqual(self.browser.js("document.title"), "demo – nanovllm")
        self.assertEqual(self.browser.js("document.activeElement.id"), "input")
        self.send("hello")
        self.assertEqual(self.last(".body"), "Hello you, x < 1.\n\nSecond paragraph.")
        self.assertEqual(self.browser.js("document.querySelector('.assistant strong').textContent"), "you")
        self.assertEqual(self.browser.js("document.querySelector('.assistant code').textContent"), "x < 1")
        self.assertEqual(Api.requests, [{"model": "demo", "stream": True, "messages": [{"role": "user", "content": "hello"}]}])
        self.send("hello again")
        self.assertEqual([it["role"] for it in Api.requests[-1]["messages"]], ["user", "assistant", "user"])
        self.assertTrue(Api.requests[-1]["messages"][1]["content"].endswith("Second paragraph."))

    def test_begins_a_new_line_with_shift(self):
        self.browser.type("hello")
        self.browser.press("Enter", "\r", modifiers=8)
        self.browser.type("you")
        self.send("")
        self.assertEqual(Api.requests[0]["messages"][0]["content"], "hello\nyou")

    def test_stops_with_the_button_and_with_escape(self):
        for stop in (lambda: self.browser.js("$('send').click()"), lambda: self.browser.press("Escape")):
            Api.aborted.clear()
            self.send("slow", wait=False)
            self.browser.wait("Array.from(document.querySelectorAll('.assistant .body')).at(-1)?.innerText.includes('tick tick')")
            self.assertEqual(self.browser.js("$('send').textContent"), "Stop")
            self.assertEqual(self.browser.js("$('log').ariaBusy"), "true")
            self.browser.screenshot("running")
            stop()
            self.browser.wait("$('send').textContent === 'Send'")
            self.assertTrue(Api.aborted.wait(20))
            self.assertEqual(self.last(".note"), "Stopped.")
        self.send("hello")
        self.assertEqual(self.last(".body"), "Hello you, x < 1.\n\nSecond paragraph.")

    def test_folds_reasoning_and_runs_nothing_of_the_text(self):
        self.send("think")
        self.assertFalse(self.browser.js("document.querySelector('.assistant details').open"))
        self.assertEqual(self.browser.js("document.querySelector('.assistant details div').textContent"), "First I think.")
        self.assertIn("a long line of code", self.browser.js("document.querySelector('.assistant pre code').textContent"))
        self.assertEqual(self.browser.js("document.querySelectorAll('.assistant img').length"), 0)
        self.assertTrue(self.last(".body").endswith("<img src=x onerror=alert(1)> é🙂"))
        self.send("hello")
        self.assertNotIn("think.", json.dumps(Api.requests[-1]))

    def test_keeps_conversations(self):
        self.send("hello first")
        self.browser.js("$('new').click()")
        self.send("think second")
        titles = "Array.from(document.querySelectorAll('#conversations .title'), (it) => it.textContent)"
        self.assertEqual(self.browser.js(titles), ["think second", "hello first"])
        self.open()
        self.assertEqual(self.browser.js(titles), ["think second", "hello first"])
        self.assertEqual(self.browser.js("document.querySelector('.assistant details div').textContent"), "First I think.")
        self.browser.js("document.querySelectorAll('#conversations .title')[1].click()")
        self.assertEqual(self.last(".body"), "Hello you, x < 1.\n\nSecond paragraph.")
        self.browser.js("document.querySelectorAll('#conversations [aria-label^=Rename]')[1].click()")
        self.browser.type("renamed")
        self.browser.press("Enter", "\r")
        self.assertEqual(self.browser.js(titles), ["think second", "renamed"])
        self.browser.js("setTimeout(() => document.querySelectorAll('#conversations [aria-label^=Delete]')[0].click())")
        self.browser.wait(f"{titles}.length === 1")
        self.open()
        self.assertEqual(self.browser.js(titles), ["renamed"])
        self.assertEqual(self.browser.js("document.querySelectorAll('.user').length"), 1)

    def test_sends_the_settings(self):
        self.browser.js("$('settings-button').click()")
        for name, value in {"system": "Be kind.", "temperature": "0.5", "max_tokens": "7", "seed": "0", "top_p": "9"}.items():
            self.browser.js(f"document.querySelector('[name={name}]').focus()")
            self.browser.type(value)
        self.browser.js("document.querySelector('[name=no_thinking]').click()")
        self.browser.screenshot("settings")
        self.browser.press("Escape")
        self.open()
        self.send("hello")
        request = Api.requests[0]
        self.assertEqual(request["messages"][0], {"role": "system", "content": "Be kind."})
        del request["messages"], request["model"], request["stream"]
        no_thinking = {"chat_template_kwargs": {"enable_thinking": False}}
        self.assertEqual(request, {"temperature": 0.5, "max_tokens": 7, "seed": 0, **no_thinking})

    def test_says_what_went_wrong(self):
        sentences = {"bad": "temperature must be at least 0.", "cut": "The connection", "die": "The engine died."}
        for word, sentence in sentences.items():
            self.send(word)
            self.assertTrue(self.last(".note").startswith(sentence), self.last(".note"))
            self.assertEqual(self.browser.js("document.querySelectorAll('.note button').length"), 1)
        self.assertEqual(Api.requests[1]["messages"], [{"role": "user", "content": "cut"}])  # as nothing answered the first
        self.browser.screenshot("errors")
        count = self.browser.js("document.querySelectorAll('.message').length")
        self.browser.js("Array.from(document.querySelectorAll('.note button')).at(-1).click()")
        self.browser.wait("$('send').textContent === 'Send'")
        self.assertEqual(self.browser.js("document.querySelectorAll('.message').length"), count)
        self.assertEqual(Api.requests[-1], Api.requests[-2])
        self.send("long")
        self.assertTrue(self.last(".note").startswith("Cut off"))

    def test_finds_the_model_of_a_server_that_was_started_again(self):
        self.send("hello")
        Api.model = "other"
        self.send("hello again")
        self.assertEqual(self.last(".body"), "Hello you, x < 1.\n\nSecond paragraph.")
        self.assertEqual([it["model"] for it in Api.requests], ["demo", "demo", "other"])
        self.assertEqual(self.browser.js("$('model').textContent"), "other")

    def test_sends_nothing_while_a_word_is_composed(self):
        self.browser.type("hello")
        for properties in ("isComposing: true", "keyCode: 229"):
            self.browser.js(f"$('input').dispatchEvent(new KeyboardEvent('keydown', {{ key: 'Enter', {properties} }}))")
        self.assertEqual(self.browser.js("$('input').value"), "hello")
        self.assertEqual(Api.requests, [])
        self.send("")
        self.assertEqual(len(Api.requests), 1)

    def test_asks_for_the_key(self):
        Api.key = "secret"
        self.open()
        hints = {"wrong": "It is kept until this tab is closed.", "secret": "The server does not know this key."}
        for key, hint in hints.items():
            self.browser.wait(f"document.querySelector('#key-dialog[open] #key-hint')?.textContent === '{hint}'")
            self.assertEqual(self.browser.js("document.activeElement.id"), "key")
            self.browser.screenshot("key")
            self.browser.type(key)
            self.browser.press("Enter", "\r")
        self.browser.wait("$('model').textContent === 'demo'")
        self.open()  # the tab keeps it
        self.send("hello")
        self.assertEqual(self.last(".body"), "Hello you, x < 1.\n\nSecond paragraph.")
        self.assertNotIn("secret", self.browser.js("JSON.stringify(localStorage)"))

    def test_fits_a_phone_and_the_dark(self):
        self.browser.screenshot("empty")
        self.send("think about a title that is much too long for the list of conversations")
        self.browser.js("document.querySelector('.assistant details').open = true")
        self.send("hello")
        backgrounds = set()
        for width, height, mobile in ((1200, 800, False), (360, 740, True)):
            for dark in (False, True):
                self.browser.screen(width, height, mobile, dark)
                name = f"{'phone' if mobile else 'desktop'}-{'dark' if dark else 'light'}"
                self.browser.screenshot(name)
                self.assertEqual(self.browser.js("document.documentElement.scrollWidth"), width, name)
                self.assertEqual(self.browser.js("document.documentElement.scrollHeight"), height, name)
                self.assertEqual(self.browser.js("$('log').scrollWidth - $('log').clientWidth"), 0, name)
                self.assertTrue(self.browser.js("$('send').getBoundingClientRect().bottom <= innerHeight"), name)
                main = width if mobile else width - 256
                self.assertEqual(self.browser.js("$('composer').getBoundingClientRect().width"), main, name)
                backgrounds.add(self.browser.js("getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(len(backgrounds), 2)
        self.browser.js("$('theme').click()")
        self.assertEqual(self.browser.js("document.documentElement.dataset.theme"), "light")
        self.assertEqual(self.browser.js("getComputedStyle($('sidebar')).visibility"), "hidden")
        self.browser.js("$('menu').click()")
        self.browser.screenshot("phone-menu")
        self.assertEqual(self.browser.js("getComputedStyle($('sidebar')).visibility"), "visible")
        self.browser.press("Escape")
        self.assertEqual(self.browser.js("$('menu').ariaExpanded"), "false")
        self.browser.js("$('settings-button').click()")
        self.browser.screenshot("phone-settings")
        self.assertEqual(self.browser.js("$('settings').scrollWidth - $('settings').clientWidth"), 0)
        self.browser.press("Escape")

    def test_is_reached_by_keyboard(self):
        self.send("hello")
        seen = []
        self.browser.js("document.activeElement.blur()")
        for _ in range(2 * 9):
            self.browser.press("Tab")
            name = "document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.className"
            seen.append(self.browser.js(name))
            if not seen[-1]:
                continue  # the browser itself
            self.assertNotEqual(self.browser.js("getComputedStyle(document.activeElement).outlineStyle"), "none", seen)
        order = ["theme", "settings-button", "new", "hello", "Rename hello", "Delete hello", "log", "input", "send"]
        seen = [it for it in seen if it in order]
        self.assertEqual(seen[seen.index("theme") :][: len(order)], order)


CHROMIUM = find_chromium()
if __name__ == "__main__":
    if CHROMIUM is None:
        print("SKIPPED: PageTest needs Chromium (the package chromium; a snap does not do)")
        sys.exit(77)
    unittest.main()
