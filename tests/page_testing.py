"""What tests of the page need: headless Chromium, and a server that plays the API and serves the page's files as the
binary does, with the policy of src/server/page/page.cc and below a prefix.

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
POLICY = re.search(r"kSecurityPolicy =(.*?);\n", (ROOT / "src" / "server" / "page" / "page.cc").read_text(), re.DOTALL)[1]
POLICY = "".join(re.findall(r'"(.*?)"', POLICY))
TYPES = {"": ("index.html", "text/html"), "style.css": ("style.css", "text/css"),
         **{it.name: (it.name, "text/javascript") for it in PAGE.glob("*.js")}}
CODE = "Here:\n\n```python\nprint(\"a long line of code that no phone can show as a whole: it is scrolled\")\n```\n\n"
RICH = """# What bread needs

It takes **four** things, *time* above all, and no ~~sugar~~. `flour = 500` and 2 ** 3 ** 2 stay as they are; see
[the recipe](https://example.org/bread) or https://example.org/flour.

1. Mix the flour with the water.
   - Lukewarm, not hot
   - By weight: $w_1 * 0.7 = w_2$
2. Wait.

   > A dough that rises slowly tastes better.
3. Bake it.

## Amounts

| For | Flour | Water | What else is worth to be said about it |
|:--|--:|:-:|---|
| one loaf | 500 g | 350 g | with a little salt |
| two loaves | 1000 g | 700 g | `a\\|b` and **more** of it |

```python
def water(flour, share=0.7):
    return flour * share  # a line that is too long for a phone, and for most other screens as well, so it scrolls
```

\\[
\\int_0^1 x^2 \\, dx = \\frac{1}{3}
\\]

---

### And then

<b>Cut</b> it cold."""
ANSWERS = {  # by the first word of the message: pieces of (reasoning, content)
    "hello": [("", "Hel"), ("", "lo **you**, `x < 1`.\n\nSecond "), ("", "paragraph.")],
    "rich": [("What does the user want? **Bread**.", "")] + [("", RICH[i : i + 40]) for i in range(0, len(RICH), 40)],
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
    given_up = []  # messages whose answers were stopped
    release = threading.Event()  # ends answers to "wait"

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
        if word == "much":
            return self.refuse(400, "This model's maximum context length is 4096 tokens. However, your prompt contains 5000 input tokens.")
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
        if word in ("slow", "wait"):
            try:
                while word == "slow" or not Api.release.is_set():
                    delta(content="tick ")
                    time.sleep(0.02)
            except OSError:
                Api.given_up.append(body["messages"][-1]["content"])
                return Api.aborted.set()
        if word == "again":
            delta(content=f"Answer {len(Api.requests)}.")
        if word == "call":
            for name, part in (("weather", ""), (None, '{"city": "Bo'), (None, 'nn", "days": 2}')):
                delta(tool_calls=[{"index": 0, "function": {**({"name": name} if name else {}), "arguments": part}}])
        for reasoning, content in ANSWERS.get(word, [] if word in ("again", "call", "wait") else [("", "Part")]):
            delta(**({"reasoning": reasoning, "reasoning_content": reasoning} if reasoning else {"content": content}))
        if word == "cut":
            self.close_connection = True
            return
        if word == "die":
            self.send_event('data: {"error": {"message": "The engine died.", "code": 500}}\n\n')
        delta(finish_reason="length" if word in ("long", "brim") else "stop")
        self.send_event(f'data: {{"choices": [], "usage": {{"total_tokens": {4096 if word == "brim" else 3}}}}}\n\n')
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
        assert "exceptionDetails" not in result, (expression[-500:], result["exceptionDetails"])
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
            time.sleep(0.3)  # what scrolls is drawn a little later
            data = self.call("Page.captureScreenshot", format="png")["data"]
            pathlib.Path(folder, name + ".png").write_bytes(base64.b64decode(data))


class PageTestCase(unittest.TestCase):
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
        Api.given_up.clear()
        Api.release.clear()
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

    def click(self, selector, index=-1):
        self.browser.js(f"Array.from(document.querySelectorAll({json.dumps(selector)})).at({index}).click()")

    def last(self, selector):
        return self.browser.js(f"Array.from(document.querySelectorAll('.message {selector}')).at(-1)?.innerText")


CHROMIUM = find_chromium()


def main():
    if CHROMIUM is None:
        print(f"SKIPPED: {pathlib.Path(sys.argv[0]).name} needs Chromium (the package chromium; a snap does not do)")
        sys.exit(77)
    unittest.main()
