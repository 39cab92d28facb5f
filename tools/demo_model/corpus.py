"""Reads the two corpora and turns them into clean, plain-ASCII short stories and book paragraphs."""

import json
import re
import tarfile
from pathlib import Path

# Books whose vocabulary does not suit a model that tells stories to children.
EXCLUDED_BOOKS = ("Huckleberry-Finn", "Tom-Sawyer", "Treasure-Island", "Just-So-Stories")
UNSUITABLE = re.compile(r"\b(nigg|negro|savages?\b|injun|squaw|darkey|heathen|jews?\b|jewess)", re.I)

# Prefaces and notes of the people who edited or transcribed a book.
ABOUT_THE_BOOK = re.compile(
    r"\b(Gutenberg|Illustration|Editor|[Pp]reface|translat\w+|edition|footnote|e-?text|folklore|publish\w+)\b"
)

# UTF-8 punctuation that one source decoded as Windows-1252 and then lost its last byte.
MOJIBAKE = (("â€œ", '"'), ("â€™", "'"), ("â€˜", "'"), ("â€”", " - "), ("â€“", " - "), ("â€¦", "..."),
            ("â€", '"'))
OPENING = re.compile(r"(Once|One|There|It was|[A-Z]\w+ (and|was|is|likes?|loves?|loved|liked|had)\b)")


def open_corpora(source: Path, work: Path) -> Path:
    """Returns the folder that holds tinystories/ and gutenberg-children/, unpacking an archive first."""
    if source.is_dir():
        return source
    if not source.is_file():
        raise SystemExit(f"{source}: no such corpora; give corpora.tar.xz or the folder it unpacks to")
    target = work / "corpora"
    if not target.is_dir():
        with tarfile.open(source) as archive:
            archive.extractall(target, filter="data")
    found = next(target.rglob("tinystories"), None)
    if found is None:
        raise SystemExit(f"{source}: holds no tinystories folder")
    return found.parent


def straighten(text: str) -> str:
    """Quotes, dashes and spaces as the short stories write them."""
    for wrong, right in MOJIBAKE:
        text = text.replace(wrong, right)
    # British books open speech with a single quote; a closing one follows punctuation.
    text = re.sub(r"(?<=[.,!?;:-])’(?!\w)", '"', text)
    text = text.replace("‘", '"').replace("’", "'").replace("“", '"').replace("”", '"')
    text = text.replace("—", "--").replace("–", "-").replace("…", "...").replace("\xa0", " ")
    text = text.replace("æ", "ae").replace("é", "e").replace("è", "e").replace("ö", "o")
    return re.sub(r"[ \t]+", " ", text)


def tidy_story(text: str) -> str:
    lines = [line.strip() for line in straighten(text).split("\n")]
    return "\n".join(line for line in lines if line and line.lower() != "end of story.")


def split_unseparated(text: str) -> list[str]:
    """Stories of a file in which paragraphs are two newlines apart and stories one.

    A piece that is too short or does not open like a story is the tail of the one before it.
    """
    stories: list[str] = []
    for piece in re.split(r"(?<!\n)\n(?!\n)", text):
        opens = OPENING.match(piece) or (len(piece) >= 500 and not piece.startswith('"'))
        if stories and (len(piece) < 300 or not opens):
            stories[-1] += "\n" + piece
        else:
            stories.append(piece)
    return stories


def load_stories(root: Path) -> list[str]:
    """Every distinct short story of 200 to 2,500 ASCII characters that ends with a full sentence."""
    folder = root / "tinystories"
    separated = (folder / "decoding-gpt_10k.txt").read_text(encoding="utf-8").split("<|endoftext|>")
    joined = (folder / "smallGPT.txt").read_text(encoding="utf-8")
    stories = dict.fromkeys(tidy_story(s) for s in separated + split_unseparated(joined))
    return [
        s
        for s in stories
        if 200 <= len(s) <= 2500 and s.isascii() and s[-1] in '.!?"' and OPENING.match(s[:200])
    ]


def keep_paragraph(text: str) -> bool:
    """Prose only: no headings, tables of contents, verse, notes or picture captions."""
    if len(text) < 40 or not text.isascii() or text[-1] not in '.!?"-:;,':
        return False
    if text[0] in "[*(|" or UNSUITABLE.search(text) or ABOUT_THE_BOOK.search(text):
        return False
    letters = [c for c in text if c.isalpha()]
    lower = sum(c.islower() for c in letters)
    return len(letters) > 0.7 * len(text) and lower > 0.9 * len(letters)


def load_books(root: Path) -> list[list[str]]:
    """The paragraphs of each book."""
    folder = root / "gutenberg-children"
    titles = [entry[0] for entry in json.loads((folder / "books.json").read_text())]
    excluded = [t.replace("-", " ").lower() for t in titles if any(x in t for x in EXCLUDED_BOOKS)]
    excluded = [re.sub(r"_\d+$", "", t) for t in excluded]
    books = []
    for text in (folder / "train.txt").read_text(encoding="utf-8").split("<|endoftext|>"):
        head = " ".join(text[:200].lower().split())
        if any(title in head for title in excluded) or "just so stories" in head:
            continue
        paragraphs = [" ".join(straighten(p).replace("_", "").split()) for p in text.split("\n\n")]
        kept = [p for p in paragraphs if p and keep_paragraph(p)]
        if kept:
            books.append(kept)
    return books
