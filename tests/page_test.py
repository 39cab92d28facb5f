#!/usr/bin/env python3
"""The page to chat with, in headless Chromium: what people do with it, and how it looks. See page_testing.py."""
import json

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


if __name__ == "__main__":
    page_testing.main()
