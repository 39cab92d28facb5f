"""The page's Markdown against markdown-it-py's: both trees in one form, and texts to compare them on."""
import random
import re

import markdown_it

INLINE = {"em": "em", "strong": "strong", "s": "del"}


def make_oracle():
    oracle = markdown_it.MarkdownIt("commonmark", {"html": False, "maxNesting": 1000}).enable(["table", "strikethrough"])
    oracle.disable(["reference"])
    # What becomes of an address is not the parser's matter here: it is compared as it stands in the text.
    oracle.validateLink = lambda url: True
    oracle.normalizeLink = oracle.normalizeLinkText = lambda url: url
    return oracle


def add_text(nodes, text):
    if text and nodes and isinstance(nodes[-1], str):
        nodes[-1] += text
    elif text:
        nodes.append(text)


def inline_tree(tokens):
    stack = [[]]
    for token in tokens:
        if token.type in ("text", "softbreak"):
            add_text(stack[-1], "\n" if token.type == "softbreak" else token.content)
        elif token.type == "hardbreak":
            stack[-1].append({"type": "break"})
        elif token.type == "code_inline":
            stack[-1].append({"type": "code", "text": token.content})
        elif token.type == "image":
            stack[-1].append({"type": "image", "href": token.attrs["src"], "children": inline_tree(token.children or [])})
        elif token.nesting == 1:
            node = {"type": "link", "href": token.attrs["href"]} if token.tag == "a" else {"type": INLINE[token.tag]}
            stack[-1].append({**node, "children": []})
            stack.append(stack[-1][-1]["children"])
        else:
            assert token.nesting == -1, token
            stack.pop()
    return stack[0]


def oracle_tree(oracle, text):
    root = {"children": []}
    stack = [root]
    for token in oracle.parse(text):
        parent = stack[-1]
        name = token.type.removesuffix("_open").removesuffix("_close")
        if token.nesting == -1:
            if name not in ("thead", "tbody", "th", "td"):
                stack.pop()
        elif name == "inline":
            if parent["type"] == "table":
                parent["rows"][-1].append(inline_tree(token.children))
            else:
                parent["content"] = inline_tree(token.children)
        elif name in ("fence", "code_block"):
            language = (token.info.split() or [""])[0] if name == "fence" else ""
            parent["children"].append({"type": "code", "language": language, "text": token.content.removesuffix("\n")})
        elif name == "hr":
            parent["children"].append({"type": "rule"})
        elif name == "tr":
            parent["rows"].append([])
            stack.append(parent)
        elif name in ("th", "td"):
            if len(parent["rows"]) == 1:
                parent["aligns"].append(str(token.attrs.get("style", "")).removeprefix("text-align:"))
        elif name not in ("thead", "tbody"):
            node = {
                "paragraph": lambda: {"type": "paragraph"},
                "heading": lambda: {"type": "heading", "level": int(token.tag[1])},
                "blockquote": lambda: {"type": "quote", "children": []},
                "bullet_list": lambda: {"type": "list", "start": None, "isLoose": False, "children": []},
                "ordered_list": lambda: {"type": "list", "start": int(token.attrs.get("start", 1)), "isLoose": False, "children": []},
                "list_item": lambda: {"type": "item", "children": []},
                "table": lambda: {"type": "table", "aligns": [], "rows": []},
            }[name]()
            if name == "paragraph" and parent.get("type") == "item" and not token.hidden:
                stack[-2]["isLoose"] = True
            parent["children"].append(node)
            stack.append(node)
    return [normal(it) for it in root["children"]]


def visible(node):
    """Of what is inside of paragraphs: the oracle keeps the indentation of lines within code."""
    if isinstance(node, list):
        return [visible(it) for it in node]
    if isinstance(node, dict) and node["type"] == "code":
        return {**node, "text": " ".join(node["text"].split())}
    return {**node, "children": visible(node["children"])} if isinstance(node, dict) and "children" in node else node


def normal(block):
    """In one form for both: cells that a row lacks are empty, a list in which no item has a paragraph is tight, and white
    space that nobody sees is left out of code."""
    block = dict(block)
    if block["type"] == "code":
        block["text"] = block["text"].rstrip()
    for key in ("content", "rows"):
        if key in block:
            block[key] = visible(block[key])
    if block["type"] == "table":
        block["rows"] = [row + [[]] * (len(block["aligns"]) - len(row)) for row in block["rows"]]
    if block["type"] == "list":
        block["isLoose"] &= any(it["type"] == "paragraph" for item in block["children"] for it in item["children"])
    if block["type"] in ("paragraph", "heading"):
        block.setdefault("content", [])
    if "children" in block:
        block["children"] = [normal(it) for it in block["children"]]
    return block


# In the page: the tree with what is inside of paragraphs read, too. A bare address is text to the oracle.
PARSE = """(text) => {
  const plain = (nodes) => nodes.reduce((all, it) => {
    const node = it.isBare ? it.href : it.children ? { ...it, children: plain(it.children) } : it;
    if (typeof node === "string" && typeof all.at(-1) === "string") all.push(all.pop() + node);
    else all.push(node);
    return all;
  }, []);
  const whole = (block) => {
    const { text, ...rest } = block;
    if (block.rows) return { ...block, rows: block.rows.map((row) => row.map((cell) => plain(parseInline(cell)))) };
    if (block.children) return { ...block, children: block.children.map(whole) };
    return ["paragraph", "heading"].includes(block.type) ? { ...rest, content: plain(parseInline(text)) } : block;
  };
  return parseMarkdown(text).blocks.map(whole);
}"""

LINE_BEGINS = ["", "", "", "", "", " ", "  ", "   ", "    ", "     ", "\t", " \t", "- ", "-  ", "-\t", "* ", "+ ", "-", "1. ", "2. ",
               "1) ", "10. ", "> ", ">", "- - ", "> - ", "- > ", "1. - ", "# ", "### ", "-     ", "  - ", "   - ", "    - "]
LINES = ["", "", "", "foo", "bar baz", "---", "***", "_ _ _", "===", "-", "--", "# head #", "#x", "####### seven", "```", "```py x", "````",
         "~~~", "~~~~ c", "``` a`b", "a | b", "|a|", "a  ", "a\\", "*a*", "**b** c", "    code", "\tcode", "`x", "y` z", "1.",
         "2) two", "<div>", "&amp; &#35;", "\\# no"]
TABLES = ["| a | b |\n|---|:-:|", "a | b\n--|--", "|a|\n|-|", "| a |\n:-:", "a | b\n|-|", "a\n|-|", "| *a* | `b` |\n|:-|-:|\n| x \\| y | `|` |",
          "|a|b|\n|-|-|\n|1\n|1|2|3|\nfoo", "|a|b|\n|-||-|", "a|b\n- | -", "||\n|-|", "a|b\n::|--"]
INLINES = ["*", "**", "***", "_", "__", "___", "~~", "~~~", "`", "``", "[", "]", "](", ")", "![", "[a](b)", "[a](<b c>)", "[a](b 'c')",
           "[*a*](http://x.y/z_w_)", "<http://a.b>", "<a>", "a", "b", "1", " ", "  ", "\n", "  \n", "\\\n", "\\", "\\*", "\\]", "!", ".",
           '"', "(", "é", "🙂", "€", "&lt;", "&amp", "&#x41;", "&nope;", "a_b", "2 ** 3", "snake_case_name", "https://x.y "]


def random_blocks(rng):
    lines = []
    for _ in range(rng.randint(1, 9)):
        begins = "".join(rng.choice(LINE_BEGINS) for _ in range(rng.choice((0, 1, 1, 1, 2, 3))))
        if rng.random() < 0.1:  # a table stands in one container: its rows are indented as far as its head
            begins, table = begins.expandtabs(4), rng.choice(TABLES)
            if table[0] != "|":
                begins = re.sub("[^> ]", " ", begins)  # the oracle would take a list's marker for a part of the head
            lines.append("\n" + begins + table.replace("\n", "\n" + re.sub("[^>]", " ", begins)))
        else:
            lines.append(begins + rng.choice(LINES))
    return "\n".join(lines) + rng.choice(("", "\n"))


def random_inline(rng):
    return "".join(rng.choice(INLINES) for _ in range(rng.randint(1, 14)))


def random_nest(rng, depth=0):
    """Lines of blocks within blocks, most of them as people and models indent them."""
    lines = []
    for _ in range(rng.randint(1, 3)):
        kind = rng.choice(("text", "text", "text", "fence", "table", "quote", "bullet", "number") if depth < 3 else ("text",))
        if kind == "text":
            block = [rng.choice(("foo *a*", "bar `x` baz", "a_b", "### head", "***", "x  ")) for _ in range(rng.randint(1, 2))]
        elif kind == "fence":
            block = [rng.choice(("```", "```py", "~~~~")), "  code", *rng.choice(([], ["", "*more*"], ["\ttab"]))]
            block.append(block[0].replace("py", ""))
        elif kind == "table":
            block = rng.choice((TABLES[0], TABLES[2], TABLES[6])).split("\n") + ["| 1 | 2 |"] * rng.randint(0, 2)
        elif kind == "quote":
            block = [("> " + line).rstrip() for line in random_nest(rng, depth + 1)]
        else:
            block = []
            for i in range(rng.randint(1, 3)):
                marker = rng.choice(("- ", "-   ")) if kind == "bullet" else f"{i + 1}. "
                for j, line in enumerate(random_nest(rng, depth + 1)):
                    block.append(((marker if j == 0 else " " * len(marker)) + line).rstrip())
                block += [""] * rng.choice((0, 0, 1))
        lines += block + [""] * rng.choice((0, 1, 1))
    return lines


# Math, and where the oracle leaves CommonMark: it takes white space as escaped in a target, or before a hard break; it
# loses what goes on lazily, where a line is indented by four columns and looks like the begin of a block; it finds items
# apart whose code, which nothing ends, has an empty line at its end.
ODD = re.compile(r"""\\[\[( ] | \]\(.*\\$
    | >(?s:.*)^[ >]*([ ]{4}|\t) | ^[ >]*([ ]{4}|\t)(?s:.*)> | \t[ ]*> | >.*\t
    | ^([ ]{4}|[ ]{0,3}\t)[ \t]*([-+*#`~_]|\d)
    | ^[ ]*([-+*]|\d+[.)])(?s:.*)(```|~~~)(?s:.*)^[ ]*$""", re.MULTILINE | re.VERBOSE)


def random_texts(seed, count):
    rng = random.Random(seed)
    mixed = [random_blocks(rng) for _ in range(count)]
    nested = ["\n".join(random_nest(rng)) for _ in range(count // 5)]
    return [text for text in mixed if not ODD.search(text)] + nested + [text for text in (random_inline(rng) for _ in range(count))
                                                                      if not ODD.search(text)]
