"""The byte-level BPE, and the token streams the model is trained on."""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from . import chats
from .casting import recast
from .corpus import load_books, load_stories
from .names import rename

BPE_SIZE = 4096
ENDOFTEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (ENDOFTEXT, IM_START, IM_END)  # ids 4096, 4097, 4098
# How Qwen splits text before merging.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# This bit of a stored token says that the model is not asked to predict it.
GIVEN = 0x8000
HELD_OUT_WINDOW = 512  # tokens of a book that are scored together


def train_tokenizer(stories: list[str], books: list[list[str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_SIZE,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # Short stories count four times, so that their words are whole tokens.
    tokenizer.train_from_iterator(stories * 4 + [p for book in books for p in book], trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    return tokenizer


@dataclass
class Stream:
    """Documents one after another, and the offsets at which a training window may begin."""

    tokens: np.ndarray  # uint16 [num_tokens], with GIVEN
    starts: np.ndarray  # int64 [num_starts]

    @classmethod
    def join(cls, documents: list[np.ndarray]) -> "Stream":
        lengths = np.array([len(d) for d in documents], dtype=np.int64)
        return cls(np.concatenate(documents), np.cumsum(lengths) - lengths)


class Encoder:
    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.endoftext, self.im_start, self.im_end = (tokenizer.token_to_id(t) for t in SPECIALS)
        self.newline = tokenizer.encode("\n").ids[0]

    def texts(self, texts: list[str]) -> list[np.ndarray]:
        encoded = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(e.ids, dtype=np.uint16) for e in encoded]

    def stories(self, stories: list[str]) -> list[np.ndarray]:
        return [np.append(ids, np.uint16(self.endoftext)) for ids in self.texts(stories)]

    def conversations(self, conversations: list[list[chats.Message]]) -> list[np.ndarray]:
        """ChatML; only what the assistant says, and that it stops there, is to be predicted."""
        turns = [message for messages in conversations for message in messages]
        headers = self.texts([role + "\n" for role, _ in turns])
        contents = self.texts([content for _, content in turns])
        documents, turn = [], 0
        for messages in conversations:
            parts = []
            for role, _ in messages:
                said = np.append(contents[turn], np.uint16(self.im_end))
                if role != "assistant":
                    said |= GIVEN
                opening = np.append(np.uint16(self.im_start), headers[turn])
                parts += [opening | GIVEN, said, np.array([self.newline | GIVEN], dtype=np.uint16)]
                turn += 1
            parts.append(np.array([self.endoftext | GIVEN], dtype=np.uint16))
            documents.append(np.concatenate(parts))
        return documents


def vary(story: str, rng: random.Random) -> str:
    """New names three times in four, a new leading noun every other time."""
    if rng.random() < 0.5:
        story = recast(story, rng)
    return rename(story, rng) if rng.random() < 0.75 else story


def group(stories: list[str], rng: random.Random) -> list[list[str]]:
    """Most conversations hold one story, some two, a few up to six."""
    groups, index = [], 0
    while index < len(stories):
        size = rng.choices((1, 2, 3, 6), (70, 20, 7, 3))[0]
        groups.append(stories[index : index + size])
        index += size
    return groups


def story_stream(encoder: Encoder, topics: chats.Topics, stories: list[str], passes: int, rng) -> Stream:
    """Every pass holds each story once, varied, in a new order, half of them plain and half in conversations."""
    documents = []
    for _ in range(passes):
        varied = [vary(s, rng) for s in stories]
        rng.shuffle(varied)
        half = len(varied) // 2
        talks = [chats.conversation(topics, g, rng) for g in group(varied[half:], rng)]
        mixed = encoder.stories(varied[:half]) + encoder.conversations(talks)
        rng.shuffle(mixed)
        documents += mixed
    return Stream.join(documents)


def book_stream(encoder: Encoder, books: list[list[str]]) -> Stream:
    """A window may begin at any paragraph."""
    documents = []
    for paragraphs in books:
        documents += encoder.texts([p + "\n" for p in paragraphs])
        documents.append(np.array([encoder.endoftext], dtype=np.uint16))
    return Stream.join(documents)


def every(length: int, stream: Stream) -> Stream:
    return Stream(stream.tokens, np.arange(0, len(stream.tokens), length, dtype=np.int64))


def story_prompts(encoder: Encoder, topics: chats.Topics, stories: list[str], count: int, rng):
    """Openings from which a teacher is to write a new story: requests, and first words."""
    prompts = []
    for _ in range(count):
        story = vary(rng.choice(stories), rng)
        if rng.random() < 0.75:
            text = chats.request(topics.topic(story, rng), rng)
            ids = encoder.conversations([[("user", text), ("assistant", "")]])[0][:-3]
        else:
            words = " ".join(story.split()[: rng.randint(2, 8)])
            ids = encoder.texts([words])[0] | GIVEN
        prompts.append(ids)
    return prompts


def prepare(corpora: Path, work: Path, passes: int, num_prompts: int, seed: int) -> None:
    """Writes tokenizer.json and streams.npz into `work`."""
    rng = random.Random(seed)
    stories, books = load_stories(corpora), load_books(corpora)
    rng.shuffle(stories)
    held_out = len(stories) // 20
    held_out_stories, stories = stories[:held_out], stories[held_out:]
    # The last fiftieth of every book is held out.
    cuts = [len(book) - len(book) // 50 for book in books]
    held_out_books = [book[cut:] for book, cut in zip(books, cuts)]
    books = [book[:cut] for book, cut in zip(books, cuts)]

    tokenizer = train_tokenizer(stories, books)
    tokenizer.save(str(work / "tokenizer.json"))
    encoder = Encoder(tokenizer)
    topics = chats.Topics(stories)
    talks = [chats.ask(topics, story, rng) for story in held_out_stories]
    streams = {
        "stories": story_stream(encoder, topics, stories, passes, rng),
        "books": book_stream(encoder, books),
        "held_out_stories": Stream.join(encoder.stories(held_out_stories)),
        "held_out_chats": Stream.join(encoder.conversations(talks)),
        "held_out_books": every(HELD_OUT_WINDOW, book_stream(encoder, held_out_books)),
        "prompts": Stream.join(story_prompts(encoder, topics, stories, num_prompts, rng)),
    }
    for name, stream in streams.items():
        print(f"{name}: {len(stream.tokens):,} tokens, {len(stream.starts):,} starts")
    print(f"{len(stories)} stories, {len(books)} books; held out: {held_out} stories")
    arrays = {f"{n}.{f}": getattr(s, f) for n, s in streams.items() for f in ("tokens", "starts")}
    np.savez_compressed(work / "streams.npz", **arrays)


def load_streams(work: Path) -> dict[str, Stream]:
    with np.load(work / "streams.npz") as arrays:
        names = sorted({key.split(".")[0] for key in arrays})
        return {n: Stream(arrays[f"{n}.tokens"], arrays[f"{n}.starts"]) for n in names}
