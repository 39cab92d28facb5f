#!/usr/bin/env python3
"""How the page reads Markdown and shows it, in headless Chromium: against what is right by CommonMark, and against
markdown-it-py where Python has it (scripts/test_serve.sh installs it). See page_testing.py.
"""
import json
import random
import sys
import unittest

import page_testing
from page_testing import RICH

try:
    import markdown_oracle
except ImportError:
    markdown_oracle = None

A = 'target="_blank" rel="noopener noreferrer"'
LINK = f'<a href="https://a.b/c" {A}>'


def code(text, language="", lines="\n"):
    bar = f'<div class="bar"><span>{language}</span><button type="button" class="action copy" aria-label="Copy the code">Copy</button></div>'
    return f'<div class="code">{bar}<pre tabindex="0"><code>{text}</code></pre></div>'


# What is shown, without the attributes that only style and focus need.
CASES = {
    "flanking": [
        ("2 ** 3 ** 2", "<p>2 ** 3 ** 2</p>"),
        ("**a** __b__ *c* _d_ ***e***", "<p><strong>a</strong> <strong>b</strong> <em>c</em> <em>d</em> <em><strong>e</strong></em></p>"),
        ("snake_case_name and 5*3*2", "<p>snake_case_name and 5<em>3</em>2</p>"),
        ("**a*", "<p>*<em>a</em></p>"),
        ("*a **b** c*", "<p><em>a <strong>b</strong> c</em></p>"),
        ("* a*", "<ul><li><p>a*</p></li></ul>"),
        ('a*"b"*', '<p>a*"b"*</p>'),
        ("~~a~~ ~5 and ~~ b~~", "<p><del>a</del> ~5 and ~~ b~~</p>"),
        ("**注意：**请看", "<p><strong>注意：</strong>请看</p>"),  # no spaces between words: CommonMark's rule alone would not find its end
        ("他说**“好”**。", "<p>他说<strong>“好”</strong>。</p>"),
    ],
    "blocks": [
        ("# a #\n## b\n####### c\n#d", "<h2>a</h2><h3>b</h3><p>####### c\n#d</p>"),
        ("a\n===\nb\n---", "<h2>a</h2><h3>b</h3>"),
        ("***\n- - -\n___\n--", "<hr><hr><hr><p>--</p>"),
        ("> a\nb\n>\n> > c\n\nd", "<blockquote><p>a\nb</p><blockquote><p>c</p></blockquote></blockquote><p>d</p>"),
        ("    a\n\n      b\nc", code("a\n\n  b") + "<p>c</p>"),
        ("a\nb  \nc\\\nd", "<p>a\nb<br>c<br>d</p>"),
        ("a\r\nb\r\n\r\nc", "<p>a\nb</p><p>c</p>"),
        ("", ""),
    ],
    "lists": [
        ("- a\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
        ("- a\n\n- b", '<ul class="loose"><li><p>a</p></li><li><p>b</p></li></ul>'),
        ("- a\n\n  b\n- c", '<ul class="loose"><li><p>a</p><p>b</p></li><li><p>c</p></li></ul>'),
        ("- a\n  - b\n\n    c\n- d", '<ul><li><p>a</p><ul class="loose"><li><p>b</p><p>c</p></li></ul></li><li><p>d</p></li></ul>'),
        ("7. a\n8. b\n\n1) c", '<ol start="7"><li><p>a</p></li><li><p>b</p></li></ol><ol start="1"><li><p>c</p></li></ol>'),
        ("1. a\n    - b\n    - c\n2. d", '<ol start="1"><li><p>a</p><ul><li><p>b</p></li><li><p>c</p></li></ul></li><li><p>d</p></li></ol>'),
        ("a\n2. b\n1. c", '<p>a\n2. b</p><ol start="1"><li><p>c</p></li></ol>'),
        ("- a\n* b\n+", "<ul><li><p>a</p></li></ul><ul><li><p>b</p></li></ul><ul><li></li></ul>"),
        ("1. a\n   ```\n   b\n     c\n   ```\n", '<ol start="1"><li><p>a</p>' + code("b\n  c") + "</li></ol>"),
        ("-\ta\n\n\tb", '<ul class="loose"><li><p>a</p><p>b</p></li></ul>'),
    ],
    "fences": [
        ("```py\na\n```\nb", code("a", "py") + "<p>b</p>"),
        ("````\n```\n~~~\n````", code("```\n~~~")),
        ("~~~ c++ x\n```\n~~~~", code("```", "c++")),
        ("  ```\n  a\n    b\n   ```", code("a\n  b")),
        ("```\n\ta <b>\n\n", code("\ta &lt;b&gt;\n")),
        ("```\n``` x\n``", code("``` x\n``")),
        ("> ```\n> a\nb", "<blockquote>" + code("a") + "</blockquote><p>b</p>"),
        ("``` a`b", "<p>``` a`b</p>"),
    ],
    "tables": [
        ("| a | b |\n|:--|:-:|\n| *c* | `d` | e |\n| f |\n\ng",
         '<div class="table"><table><thead><tr><th class="left">a</th><th class="center">b</th></tr></thead><tbody><tr><td class="left">'
         '<em>c</em></td><td class="center"><code>d</code></td></tr><tr><td class="left">f</td></tr></tbody></table></div><p>g</p>'),
        ("x\na|b\n-|-:\nc\\|d|e", '<p>x</p><div class="table"><table><thead><tr><th>a</th><th class="right">b</th></tr></thead><tbody><tr>'
                                  '<td>c|d</td><td class="right">e</td></tr></tbody></table></div>'),
        ("a|b\n-|-|-", "<p>a|b\n-|-|-</p>"),
        ("a | b\n- | -", "<p>a | b</p><ul><li><p>| -</p></li></ul>"),
    ],
    "links": [
        ("[x](https://a.b/c)", f"<p>{LINK}x</a></p>"),
        ('[*x* [y]](<https://a.b/c> "t")', f"<p>{LINK}<em>x</em> [y]</a></p>"),
        ("<https://a.b/c> https://a.b/c.", f"<p>{LINK}https://a.b/c</a> {LINK}https://a.b/c</a>.</p>"),
        ("(see https://a.b/c), https://a.b/c**", f"<p>(see {LINK}https://a.b/c</a>), {LINK}https://a.b/c</a>**</p>"),
        ("访问https://a.b/c。", f"<p>访问{LINK}https://a.b/c</a>。</p>"),
        ("https://", "<p>https://</p>"),
        ("[x](javascript:alert(1)) [y](JaVaScRiPt:alert(2))", "<p>x (javascript:alert(1)) y (JaVaScRiPt:alert(2))</p>"),
        ("[x](data:text/html,z) [y](//a.b) [z](/c) [w]() <ftp://a.b>", "<p>x (data:text/html,z) y (//a.b) z (/c) w ftp://a.b</p>"),
        ("[x](https:evil) [y](https:///z) [z](http://[)", "<p>x (https:evil) y (https:///z) z (http://[)</p>"),
        ("![x](https://a.b/c) ![](https://a.b/c)", f"<p>{LINK}x</a> {LINK}https://a.b/c</a></p>"),
        ("[![x](http://d)](https://a.b/c)", f"<p>{LINK}x</a></p>"),
        ("[a [b](https://a.b/c) d](http://e)", f"<p>[a {LINK}b</a> d](<a href=\"http://e\" {A}>http://e</a>)</p>"),
        ("[x] [x][y] [x](a b)", "<p>[x] [x][y] [x](a b)</p>"),
    ],
    "text": [
        ("<b>x</b> <img src=x onerror=alert(1)><!-- c -->", "<p>&lt;b&gt;x&lt;/b&gt; &lt;img src=x onerror=alert(1)&gt;&lt;!-- c --&gt;</p>"),
        ("<div>\n*a*\n</div>", "<p>&lt;div&gt;\n<em>a</em>\n&lt;/div&gt;</p>"),
        ("\\*a\\* \\a \\\\ \\# \\<", "<p>*a* \\a \\ # &lt;</p>"),
        ("&amp; &lt;b&gt; &#35;&#x41; &nope; &copy; & &#0;", "<p>&amp; &lt;b&gt; #A &amp;nope; © &amp; \ufffd</p>"),
        ("`a  b` `` ` `` `*c*` `&amp;\\` `d", "<p><code>a  b</code> <code>`</code> <code>*c*</code> <code>&amp;amp;\\</code> `d</p>"),
    ],
    "math": [
        ("$a_1 * b_2 * c$ and \\(x_i \\{y\\}\\)", "<p><span>$a_1 * b_2 * c$</span> and <span>\\(x_i \\{y\\}\\)</span></p>"),
        ("$$a_1 \\\\ b_2$$ \\[*c*\\]", "<p><span>$$a_1 \\\\ b_2$$</span> <span>\\[*c*\\]</span></p>"),
        ("so:\n\\[\na &= 1 \\\\\n- b\n=\n\\]\n*c*", "<p>so:</p><div>\\[\na &amp;= 1 \\\\\n- b\n=\n\\]</div><p><em>c</em></p>"),
        ("1. a\n   $$\n   # b\n   $$", '<ol start="1"><li><p>a</p><div>$$\n# b\n$$</div></li></ol>'),
        ("from $5 to $10, or *US$5*", "<p>from $5 to $10, or <em>US$5</em></p>"),
        ("$5 *and* 6$ `$a` $", "<p><span>$5 *and* 6$</span> <code>$a</code> $</p>"),
        ("\\$a*b*c\\$ \\(a*b*", "<p>$a<em>b</em>c$ (a<em>b</em></p>"),
        ("$$ is *it*\n\nb", "<div>$$ is *it*</div><p>b</p>"),
    ],
}
SHOW = """(text) => {
  const body = document.createElement("div");
  showMarkdown(body, text);
  return body.innerHTML;
}"""
# Texts on which parsers that look back or ahead take quadratic time or a deep stack.
HOSTILE = {
    "stars": "*a _b ~~c " * 8000, "closers": "a* b_ c~~ " * 8000, "brackets": "[" * 60000, "images": "![a](" * 12000, "pointed": "[a](<b" * 10000,
    "titles": "[a](b \"c 'd (e " * 4000, "backticks": " ".join("`" * n for n in range(1, 350)), "spaces": "a" + " " * 60000 + "b",
    "quotes": ">" * 60000, "lists": "- " * 30000, "nested": "".join("  " * n + "- a\n" for n in range(300)), "dollars": "$a " * 20000,
    "maths": "\\( $$ \\[ " * 8000, "angles": "<a:" * 20000, "entities": "&" * 60000, "tables": "|a" * 5000 + "\n" + "|-" * 5000 + "\n" + "a\n" * 5000,
    "parentheses": "[a](" + "(" * 30000, "address": "https://a.b/" + ")" * 50000, "strong": "**a" * 10000 + "a**" * 10000, "hashes": "# a" + " #" * 30000,
    "rules": "- " * 1000 + "a", "lazy": "> a\n" + "b\n" * 20000,
}


class MarkdownTest(page_testing.PageTestCase):
    def shown(self, texts):
        return self.browser.js(f"{json.dumps(texts)}.map({SHOW})")

    def check(self, name):
        texts, wanted = zip(*CASES[name])
        for text, want, html in zip(texts, wanted, self.shown(texts)):
            html = html.replace(' class="math"', "").replace('<div tabindex="0">', "<div>").replace('class="table" tabindex="0"', 'class="table"')
            html = html.replace(' class=""', "")
            with self.subTest(text):
                self.assertEqual(html, want)

    def test_emphasis_flanks_as_commonmark_has_it(self):
        self.check("flanking")

    def test_reads_blocks(self):
        self.check("blocks")

    def test_reads_lists(self):
        self.check("lists")

    def test_reads_fences_of_any_length(self):
        self.check("fences")

    def test_reads_tables(self):
        self.check("tables")

    def test_links_lead_to_http_only_and_images_are_links(self):
        self.check("links")

    def test_html_is_text(self):
        self.check("text")

    def test_leaves_math_readable(self):
        self.check("math")

    def test_reads_as_the_oracle_does(self):
        if markdown_oracle is None:
            print("SKIPPED: test_reads_as_the_oracle_does needs markdown-it-py (scripts/test_serve.sh installs it)", file=sys.stderr)
            raise unittest.SkipTest("no markdown-it-py")
        oracle = markdown_oracle.make_oracle()
        cases = [text for name in CASES if name != "math" for text, _ in CASES[name]]
        # Where we differ on purpose: scripts without spaces, entities that few people use, and an empty cell.
        texts = [text for text in cases if text.isascii() and "&copy;" not in text and "http://[" not in text]
        self.assertGreater(len(texts), 50)
        texts += markdown_oracle.random_texts(1, 6000)
        for text, tree in zip(texts, self.browser.js(f"{json.dumps(texts)}.map({markdown_oracle.PARSE})")):
            self.assertEqual([markdown_oracle.normal(it) for it in tree], markdown_oracle.oracle_tree(oracle, text), repr(text))

    def test_shows_a_growing_text_as_the_whole_one(self):
        rng = random.Random(7)
        texts = [RICH] + [text for cases in CASES.values() for text, _ in cases]
        pieces = "foo|*a*|\n|\n\n|- |  - |1. |> |```\n|~~~\n|# |---\n|\\[\n|\\]\n|$$\n||a|b|\n|-|-|\n|    |[x](https://a.b)|\t|`".split("|")
        texts += ["".join(rng.choice(pieces) for _ in range(rng.randint(3, 25))) for _ in range(1500)]
        steps = [[rng.randint(1, 7) for _ in range(len(text))] for text in texts]
        grown = self.browser.js(f"""((texts, steps) => texts.map((text, i) => {{
          const body = document.createElement("div");
          for (let at = 0, n = 0; at < text.length; n++) showMarkdown(body, text.slice(0, at += steps[i][n]));
          return body.innerHTML;
        }}))({json.dumps(texts)}, {json.dumps(steps)})""")
        for text, html, whole in zip(texts, grown, self.shown(texts)):
            self.assertEqual(html.replace(' class=""', ""), whole.replace(' class=""', ""), repr(text))

    def test_reads_only_the_last_block_of_a_growing_text_again(self):
        read = self.browser.js("""(() => {
          const text = "A paragraph of *some* words.\\n\\n".repeat(3000), body = document.createElement("div");
          const whole = parseMarkdown;
          let read = 0;
          parseMarkdown = (text) => { read += text.length; return whole(text); };
          for (let at = 0; at < text.length; at += 10) showMarkdown(body, text.slice(0, at));
          parseMarkdown = whole;
          return [read / text.length, body.children.length];
        })()""")
        self.assertEqual(read[1], 3000)
        self.assertLess(read[0], 5)  # times that a character is read

    def test_keeps_the_nodes_of_what_has_not_changed(self):
        self.assertEqual(self.browser.js("""(() => {
          const body = document.createElement("div"), kept = [];
          showMarkdown(body, "- a\\n- b\\n  ```js\\n  c");
          const item = body.querySelector("li"), code = body.querySelector("pre code"), text = code.firstChild;
          showMarkdown(body, "- a\\n- b\\n  ```js\\n  c d\\n  e\\n");
          return [item === body.querySelector("li"), text === body.querySelector("pre code").firstChild, code.textContent];
        })()"""), [True, True, "c d\ne"])

    def test_hostile_texts_take_no_time(self):
        for name, text in HOSTILE.items():
            for what in (SHOW, "(text) => parseInline(text).length"):
                milliseconds = self.browser.js(f"((text) => {{ const begin = performance.now(); ({what})(text); return performance.now() - begin; }})"
                                               f"({json.dumps(text)})")
                self.assertLess(milliseconds, 1500, name)


if __name__ == "__main__":
    page_testing.main()
