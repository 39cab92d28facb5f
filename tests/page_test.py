#!/usr/bin/env python3
"""The page to chat with, in headless Chromium: what people do with it, and how it looks. See page_testing.py."""
import json
import os
import sys
import unittest

import page_testing
from page_testing import Api


class PageTest(page_testing.PageTestCase):
    def test_shows_an_answer_as_it_comes(self):
        self.assertEqual(self.browser.js("document.title"), "demo – nanovllm")
        self.assertEqual(self.browser.js("document.activeElement.id"), "input")
        self.send("hello")
        self.assertEqual(self.last(".body"), "Hello you, x < 1.\n\nSecond paragraph.")
        self.assertEqual(self.browser.js("document.querySelector('.assistant strong').textContent"), "you")
        self.assertEqual(self.browser.js("document.querySelector('.assistant code').textContent"), "x < 1")
        self.assertEqual(Api.requests, [{"model": "demo", "stream": True, "stream_options": {"include_usage": True}, "messages": [{"role": "user", "content": "hello"}]}])
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
        del request["messages"], request["model"], request["stream"], request["stream_options"]
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

    def texts(self, selector):
        return self.browser.js(f"Array.from(document.querySelectorAll({json.dumps(selector)}), (it) => it.innerText)")

    def stored(self):
        return self.browser.js("storedConversations()")

    def test_shows_what_a_user_wrote_as_typed(self):
        self.browser.type("\n \n    hello\n\thello \n")
        self.send("")
        self.assertEqual(Api.requests[-1]["messages"][-1]["content"], "    hello\n\thello")
        self.browser.js("$('new').click()")
        text = "hello **you**\n    <b>`x`</b>\n\n- [a](https://a.b)  $1$"
        self.browser.type(text)
        self.send("")
        self.assertEqual(self.browser.js("document.querySelector('.user .body').textContent"), text)
        self.assertEqual(self.browser.js("document.querySelector('.user .body').children.length"), 0)
        self.assertEqual(self.browser.js("getComputedStyle(document.querySelector('.user .body')).whiteSpaceCollapse"), "preserve")

    def test_shows_rich_answers(self):
        self.send("rich")
        counts = {"h2": 1, "h3": 1, "h4": 1, "table": 1, "ol > li": 3, "ul > li": 2, "blockquote": 1, ".code": 1, "div.math": 1, "hr": 1, "a": 2}
        for selector, count in counts.items():
            self.assertEqual(self.browser.js(f"document.querySelectorAll('.assistant .body {selector}').length"), count, selector)
        self.assertEqual(self.browser.js("document.querySelector('.assistant details strong').textContent"), "Bread")
        self.assertEqual(self.last(".code .bar span"), "python")
        self.open()
        self.assertEqual(self.browser.js("document.querySelectorAll('.assistant table').length"), 1)

    def test_copies_code_and_messages(self):
        # Both ways: the clipboard of https and of this machine, and the one that is left elsewhere.
        self.browser.js("""window.copied = [], navigator.clipboard.writeText = async (text) => void copied.push(text)""")
        self.send("think")
        self.click(".assistant .code .copy")
        self.browser.wait("document.querySelector('.assistant .code .copy').textContent === 'Copied'")
        self.click(".user .actions .copy")
        self.click(".assistant .actions .copy")
        self.browser.wait("copied.length === 3")
        copied = self.browser.js("copied")
        self.assertEqual(copied[:2], ['print("a long line of code that no phone can show as a whole: it is scrolled")', "think"])
        self.assertTrue(copied[2].startswith("Here:\n\n```python\n") and copied[2].endswith("é🙂"), copied[2])
        self.browser.js("""navigator.clipboard.writeText = async () => { throw new Error("not here"); };
          document.execCommand = (what) => { copied.push(what, document.activeElement.value); return true; };
          $('send').focus()""")
        self.click(".user .actions .copy")
        self.browser.wait("copied.length === 5")
        self.assertEqual(self.browser.js("copied.slice(3)"), ["copy", "think"])
        self.browser.wait("document.querySelector('.user .actions .copy').textContent === 'Copied'")
        self.assertEqual(self.browser.js("document.activeElement.id"), "send")
        self.assertEqual(self.browser.js("document.querySelectorAll('.offscreen').length"), 0)
        self.browser.js("document.execCommand = () => false")
        self.click(".user .actions .copy")
        self.browser.wait("document.querySelector('.user .actions .copy').textContent === 'Not copied'")

    def test_answers_again(self):
        self.send("again please")
        self.send("again and again")
        self.assertEqual(self.texts(".assistant .body"), ["Answer 1.", "Answer 2."])
        self.assertEqual(self.browser.js("Array.from(document.querySelectorAll('.again'), (it) => it.checkVisibility())"), [False, True])
        self.click(".again")
        self.browser.wait("document.querySelectorAll('.assistant .body')[1]?.innerText === 'Answer 3.' && $('send').textContent === 'Send'")
        self.assertEqual(Api.requests[2], Api.requests[1])
        self.assertEqual(self.texts(".assistant .body"), ["Answer 1.", "Answer 3."])
        self.open()
        self.assertEqual(self.texts(".message .body"), ["again please", "Answer 1.", "again and again", "Answer 3."])

    def test_edits_a_message(self):
        self.send("again one")
        self.send("again two")
        self.click(".user .actions button", 1)
        self.assertEqual(self.browser.js("[document.activeElement.value, document.querySelector('.edit .hint').textContent]"),
                         ["again one", "All that follows is replaced."])
        self.browser.type(" and a half")
        self.browser.press("Escape")
        self.assertEqual(self.texts(".message .body"), ["again one", "Answer 1.", "again two", "Answer 2."])
        self.assertEqual(self.browser.js("document.activeElement.textContent"), "Edit")
        self.click(".user .actions button", 1)
        self.browser.type(" and a half")
        self.browser.press("Enter", "\r")
        self.browser.wait("$('send').textContent === 'Send' && document.querySelectorAll('.assistant').length === 1")
        self.assertEqual(Api.requests[-1]["messages"], [{"role": "user", "content": "again one and a half"}])
        self.assertEqual(self.texts(".message .body"), ["again one and a half", "Answer 3."])
        self.click(".user .actions button", 1)
        self.assertEqual(self.browser.js("document.querySelector('.edit .hint').textContent"), "The answer is replaced.")
        self.open()
        self.assertEqual(self.texts(".message .body"), ["again one and a half", "Answer 3."])

    def test_conversations_answer_independently(self):
        ticking = "document.querySelector('.assistant .body')?.innerText.includes('tick tick')"
        self.send("wait for me", wait=False)
        self.browser.wait(ticking)
        self.browser.type("a draft")
        self.browser.js("$('new').click()")
        self.assertEqual(self.browser.js("[$('send').textContent, $('input').value]"), ["Send", ""])
        self.send("slow one", wait=False)
        self.browser.wait(ticking)
        self.assertEqual(self.browser.js("document.querySelectorAll('#conversations .answering').length"), 2)
        self.browser.screenshot("two-answers")
        self.browser.press("Escape")
        self.browser.wait("$('send').textContent === 'Send'")
        self.assertTrue(Api.aborted.wait(20))
        self.assertEqual(self.last(".note"), "Stopped.")
        self.assertEqual(self.browser.js("Array.from(document.querySelectorAll('#conversations .answering .title'), (it) => it.ariaLabel)"),
                         ["wait for me (is being answered)"])
        self.send("hello")  # while the other one goes on
        self.assertEqual(self.last(".body"), "Hello you, x < 1.\n\nSecond paragraph.")
        self.click("#conversations .title")
        self.browser.wait(ticking)
        self.assertEqual(self.browser.js("[$('send').textContent, $('input').value]"), ["Stop", "a draft"])
        length = "document.querySelector('.assistant .body').innerText.length"
        self.browser.wait(f"{length} > {self.browser.js(length)}")
        self.click("#conversations .title", 0)
        Api.release.set()  # it ends while another one is shown
        self.browser.wait("!document.querySelector('#conversations .answering')")
        self.assertEqual(self.last(".body"), "Hello you, x < 1.\n\nSecond paragraph.")
        self.assertEqual(Api.given_up, ["slow one"])
        stored = {it["title"]: it["messages"][-1] for it in self.stored()}
        self.assertNotIn("note", stored["wait for me"])
        self.assertIn("tick tick", stored["wait for me"]["content"])
        self.click("#conversations .title")
        self.assertIn("tick tick", self.last(".body"))

    def test_deletes_a_conversation_that_is_being_answered(self):
        self.send("slow one", wait=False)
        self.browser.wait("document.querySelector('.assistant .body')?.innerText.includes('tick')")
        self.browser.js("setTimeout(() => document.querySelector('#conversations [aria-label^=Delete]').click())")
        self.browser.wait("$('send').textContent === 'Send' && !document.querySelector('.message')")
        self.assertTrue(Api.aborted.wait(20))
        self.assertEqual(self.stored(), [])

    def test_keeps_a_title_that_is_being_written(self):
        self.send("wait for me", wait=False)
        self.browser.wait("document.querySelector('.assistant .body')?.innerText.includes('tick')")
        self.browser.js("document.querySelector('#conversations [aria-label^=Rename]').click()")
        self.browser.type("half a ti")
        Api.release.set()
        self.browser.wait("$('send').textContent === 'Send'")
        self.browser.type("tle")
        self.browser.press("Enter", "\r")
        self.assertEqual([it["title"] for it in self.stored()], ["half a title"])
        self.assertEqual(self.browser.js("document.activeElement.textContent"), "half a title")

    def test_offers_a_new_conversation_when_the_context_is_full(self):
        self.send("brim")
        self.assertEqual(self.last(".note"), "Cut off: the conversation fills the model's context of 4,096 tokens. New conversation")
        self.send("much of it")
        self.assertTrue(self.last(".note").startswith("This conversation has become too long for the model's context"), self.last(".note"))
        self.assertEqual(self.browser.js("document.querySelectorAll('.note button').length"), 1)
        self.browser.screenshot("full")
        self.click(".note button")
        self.assertEqual(self.browser.js("[$('input').value, document.activeElement.id, current.messages.length]"), ["much of it", "input", 0])
        self.browser.press("Enter", "\r")  # nothing could be left out: the server's own words
        self.browser.wait("$('send').textContent === 'Send' && !!document.querySelector('.note button')")
        self.assertTrue(self.last(".note").startswith("This model's maximum context length is 4096 tokens."), self.last(".note"))
        self.assertEqual(self.last(".note button"), "Try again")

    def test_shows_calls_of_tools(self):
        self.send("call it")
        self.assertEqual(self.last(".calls p"), "Calls weather")
        self.assertEqual(self.browser.js("document.querySelector('.calls pre').textContent"), '{\n  "city": "Bonn",\n  "days": 2\n}')
        self.send("hello")
        self.assertEqual(Api.requests[-1]["messages"], [{"role": "user", "content": "hello"}])

    def test_titles_have_the_whole_width(self):
        self.send("hello to a title that is much too long for the list of conversations")
        self.browser.js("$('new').click()")
        widths = "['#conversations', '#conversations .title'].map((it) => document.querySelector(it).getBoundingClientRect().width)"
        whole, title = self.browser.js(widths)
        self.assertEqual(title, whole)
        self.browser.js("document.querySelector('#conversations .title').focus()")
        whole, title = self.browser.js(widths)
        self.assertLess(title, whole - 50)  # there is room for the buttons now
        self.assertTrue(self.browser.js("document.querySelector('#conversations .icon').getBoundingClientRect().width > 20"))

    def test_a_tap_beside_the_menu_closes_it(self):
        self.browser.screen(360, 740, mobile=True)
        self.send("hello")
        self.browser.js("$('menu').click()")
        self.assertEqual(self.browser.js("getComputedStyle($('sidebar')).visibility"), "visible")
        for x, visibility in ((100, "visible"), (340, "hidden")):  # on it, in the composer below what is beside it
            for kind in ("mousePressed", "mouseReleased"):
                self.browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=700, button="left", clickCount=1)
            self.assertEqual(self.browser.js("getComputedStyle($('sidebar')).visibility"), visibility)
        self.assertEqual(len(Api.requests), 1)

    def test_targets_are_large_on_a_phone(self):
        self.send("rich")
        self.send("bad")
        self.browser.screen(320, 568, mobile=True)
        self.assertEqual(self.browser.js(SMALL_TARGETS), [])
        for selector in ("#menu", ".user .actions button:last-child", "#settings-button"):
            self.click(selector)
            self.assertEqual(self.browser.js(SMALL_TARGETS), [], selector)
            self.browser.js("openMenu(false)")

    def test_contrasts_suffice(self):
        self.send("rich")
        self.send("bad")
        self.send("call")
        for dark in (False, True):
            self.browser.screen(1200, 800, dark=dark)
            for shown in ("true", "$('settings').showModal()", "$('settings').close()"):
                self.browser.js(shown)
                contrasts = self.browser.js(CONTRASTS)
                self.assertGreater(len(contrasts), 15)
                self.assertEqual({name: ratio for name, ratio in contrasts.items() if ratio < 4.5}, {}, f"dark: {dark}")

    def test_fits_from_320_pixels_on(self):
        self.send("rich")
        for width, height, mobile in ((320, 568, True), (768, 1024, True), (1920, 1080, False)):
            for dark in (False, True):
                self.browser.screen(width, height, mobile, dark)
                self.browser.screenshot(f"rich-{width}-{'dark' if dark else 'light'}")
                self.assertEqual(self.browser.js("document.documentElement.scrollWidth"), width)
                self.assertEqual(self.browser.js("$('log').scrollWidth - $('log').clientWidth"), 0, width)

    def test_nothing_moves_for_those_who_do_not_want_it(self):
        animation = "getComputedStyle(document.querySelector('#conversations .answering .title'), '::before').animationName"
        self.send("slow", wait=False)
        self.browser.wait("!!document.querySelector('.answering')")
        self.assertEqual(self.browser.js(animation), "pulse")
        self.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        self.assertEqual(self.browser.js(animation), "none")
        self.browser.press("Escape")
        self.browser.wait("$('send').textContent === 'Send'")


class RealServerTest(page_testing.PageTestCase):
    """The page that the binary has, with the binary."""

    @classmethod
    def setUpClass(cls):
        if "NANOVLLM" not in os.environ:
            print("SKIPPED: RealServerTest needs the binary's path in NANOVLLM", file=sys.stderr)
            raise unittest.SkipTest("no binary")
        super().setUpClass()
        import serve_testing  # pylint: disable=import-outside-toplevel  # it wants the binary

        cls.real = serve_testing.Server("--served-model-name", "demo", "--max-model-len", "128", small=False)
        cls.url = f"http://127.0.0.1:{cls.real.port}/"

    @classmethod
    def tearDownClass(cls):
        cls.real.stop()
        super().tearDownClass()

    def test_chats_until_the_context_is_full(self):
        for _ in range(30):
            self.send("Tell me a story about a bird and a cat.")
            self.assertTrue(self.last(".body") or self.last(".note"))
            if self.browser.js("document.querySelectorAll('.note button').length"):
                break
        self.assertEqual(self.last(".note button"), "New conversation")
        self.assertIn("context", self.last(".note"))
        self.click(".note button")
        self.assertEqual(self.browser.js("document.querySelectorAll('.message').length"), 0)


# Of colours on each other, where both are opaque: WCAG's ratio, for what people read.
CONTRASTS = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return Array.from(canvas.getImageData(0, 0, 1, 1).data);
  };
  const light = (color) => color.slice(0, 3).map((it) => it / 255)
    .reduce((sum, it, i) => sum + [0.2126, 0.7152, 0.0722][i] * (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4), 0);
  const below = (node) => {
    for (let it = node; it; it = it.parentElement) {
      const color = rgba(getComputedStyle(it).backgroundColor);
      if (color[3] === 255) return color;
    }
    return rgba("white");
  };
  const found = {};
  for (const node of document.querySelectorAll("body *")) {
    if (!node.checkVisibility() || !(node.value || Array.from(node.childNodes).some((it) => it.nodeType === 3 && it.data.trim()))) continue;
    const [one, other] = [light(rgba(getComputedStyle(node).color)), light(below(node))].sort((a, b) => b - a);
    found[`${node.tagName} ${node.id} ${node.className}`] = (one + 0.05) / (other + 0.05);
  }
  return found;
})()"""
# What fingers hit: those that are shown and no part of a sentence.
SMALL_TARGETS = """Array.from(document.querySelectorAll("button, summary, input, textarea, .check")).filter((it) => it.checkVisibility({ visibilityProperty: true }))
  .filter((it) => it.type !== "checkbox").map((it) => [it.textContent || it.name || it.id, it.getBoundingClientRect()])
  .filter(([, box]) => box.width && (box.width < 44 || box.height < 44)).map(([name, box]) => `${name} ${box.width} ${box.height}`)"""


if __name__ == "__main__":
    page_testing.main()
