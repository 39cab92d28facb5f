"""Turns short stories into conversations: a topic found in the story, a request, the story as answer."""

import collections
import math
import random
import re

from .casting import GROUP_OF, leading_noun, with_article

CHARACTER = re.compile(r"\b(an?)\s+((?:[a-z]+\s+){0,2}[a-z]+)\s+(?:named|called)\s+([A-Z][a-z]+)")
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[.,!?;\"]|[A-Z]\w*")
DETERMINERS = set("a an the his her their my your some this that".split())
# What follows a noun far more often than an adjective.
AFTER_NOUN = set(
    """and named called loved wanted liked lived loves likes wants tried looked jumped or was is were are in on of to with at for from but that who which had has he she they it by
    into because so too came went said could would did felt started looked ran made as up down out around
    . , ! ? ; \"""".split()
)
# Nouns that say nothing about what a story is about.
DULL = set(
    """time day days way lot one ones thing things friend friends end end. idea moment while side day. home
    mom dad mommy daddy mum mummy name something everyone eyes hand hands face head fun it. him them people
    bit morning night afternoon top next other others place smile smiles rest front back world words kind
    year years story week minutes hours more same best better middle bottom outside inside feeling first
    last parents family life it i he she they girl boy man woman child children kid kids lady little couple pair piece part number names hurry""".split()
)

REQUESTS = (
    ("Tell me a story about {}.", 30),
    ("Tell me a story about {}", 8),
    ("Tell me a short story about {}.", 8),
    ("Can you tell me a story about {}?", 8),
    ("Please tell me a story about {}.", 6),
    ("Write a story about {}.", 8),
    ("Write a short story about {}.", 6),
    ("Could you write me a story about {}?", 4),
    ("I would like to hear a story about {}.", 4),
    ("Do you know a story about {}?", 3),
    ("Tell me a bedtime story about {}.", 4),
    ("A story about {}, please!", 3),
    ("tell me a story about {}", 5),
)
MORE = (
    "Tell me another story about {}.", "Another one, please! This time about {}.",
    "Now tell me a story about {}.", "And one about {}?", "Thank you! Now one about {}, please.",
)
ANY = ("Tell me a story.", "Tell me a story, please.", "Can you tell me a story?", "Tell me a bedtime story.",
       "I want to hear a story.", "Write a short story.")
CONTINUE = ("Continue this story: {}", "How does this story go on? {}", "Finish this story: {}")
SYSTEMS = ("You are a storyteller.", "You are a friendly storyteller for children.",
           "You are a helpful assistant.", "You tell short stories to children.")
SMALL_TALK = (
    (("Hello!", "Hi!", "Hello", "Hi", "Hey!", "Good morning!", "Good evening!"),
     ("Hello! What story would you like to hear?", "Hi! Shall I tell you a story?")),
    (("Who are you?", "What are you?", "What is your name?"),
     ("I am a small language model that tells short stories.",)),
    (("What can you do?", "How can you help me?", "Help"),
     ("I can tell you a short story. Just say what it should be about!",)),
    (("How are you?", "How are you today?"),
     ("I am fine, thank you! Would you like to hear a story?",)),
)
THANKS = (
    (("Thank you!", "Thanks!", "Thank you, that was nice.", "I liked that story."),
     ("You are welcome! Would you like another story?", "I am glad you liked it!")),
    (("Goodbye!", "Bye!", "Good night!"), ("Goodbye! Come back soon for another story.", "Good night!")),
)

Message = tuple[str, str]  # role, content


class Topics:
    """Knows which words are nouns, and how rare each is, from the stories themselves."""

    def __init__(self, stories: list[str]):
        total, after_determiner, as_noun = (collections.Counter() for _ in range(3))
        self.documents = collections.Counter()  # word -> number of stories that use it
        for story in stories:
            words = WORD.findall(story)
            total.update(words)
            self.documents.update(set(words))
            for before, word, after in zip(words, words[1:], words[2:]):
                if before in DETERMINERS:
                    after_determiner[word] += 1
                    as_noun[word] += after in AFTER_NOUN
        self.num_stories = len(stories)
        self.nouns = {
            word
            for word, seen in after_determiner.items()
            if seen >= max(4, 0.25 * total[word])
            and as_noun[word] > 0.7 * seen
            and re.fullmatch("[a-z]{3,}", word)
        } - DULL | set(GROUP_OF)

    def subjects(self, story: str) -> list[str]:
        """The story's two most telling nouns, each with the article that the story gives it.

        The leading noun comes first where there is one.
        """
        counts = collections.Counter(word for word in WORD.findall(story) if word in self.nouns)
        opening = set(WORD.findall(story[: len(story) // 2]))
        weight = {
            word: count * math.log(self.num_stories / (1 + self.documents[word]))
            for word, count in counts.items()
            if count >= 2 and word in opening
        }
        best = sorted(weight, key=lambda w: (w == leading_noun(story), weight[w]), reverse=True)[:2]
        return [self._with_article(story, word) for word in best]

    @staticmethod
    def _with_article(story: str, word: str) -> str:
        if re.search(rf"\b[Aa]n?\s+(?:[a-z]+\s+){{0,2}}{word}\b", story) and not word.endswith("s"):
            return with_article(word)
        if word.endswith("s") or re.search(rf"\b(some|more|of|with)\s+{word}\b", story):
            return word
        return "the " + word

    def topic(self, story: str, rng: random.Random) -> str | None:
        """What a listener could have asked for to be told this story; None if nothing stands out."""
        found = CHARACTER.search(story[:250])
        subjects = self.subjects(story)
        options = subjects[:1] * 3 + subjects[1:]
        if len(subjects) == 2:
            options.append(f"{subjects[0]} and {subjects[1]}")
        if found:
            article, kind, name = found.groups()
            noun = kind.split()[-1]
            options.append(f"{article} {kind} named {name}")
            if noun not in DULL:  # "a little brown dog" is also "a dog"; "a boy" is too little to go by
                options += [f"{article} {kind}", with_article(noun)]
            options += [f"{article} {kind} and {subject}" for subject in subjects if subject.split()[-1] not in kind]
        return rng.choice(options) if options else None


def request(topic: str | None, rng: random.Random) -> str:
    if topic is None:
        return rng.choice(ANY)
    return rng.choices([r for r, _ in REQUESTS], [w for _, w in REQUESTS])[0].format(topic)


def ask(topics: Topics, story: str, rng: random.Random) -> list[Message]:
    """One request and its story as answer."""
    if rng.random() < 0.08:
        opening = re.match(r"(?:[^.!?]+[.!?]\"?\s+){1,2}", story)
        if opening and len(opening.group()) < len(story) - 100:
            rest = story[opening.end() :]
            return [("user", rng.choice(CONTINUE).format(opening.group().strip())), ("assistant", rest)]
    topic = topics.topic(story, rng) if rng.random() < 0.93 else None
    return [("user", request(topic, rng)), ("assistant", story)]


def conversation(topics: Topics, stories: list[str], rng: random.Random) -> list[Message]:
    """Several stories in one conversation, sometimes with a system message, a greeting and thanks."""
    messages: list[Message] = []
    if rng.random() < 0.15:
        messages.append(("system", rng.choice(SYSTEMS)))
    if rng.random() < 0.12:
        questions, answers = rng.choice(SMALL_TALK)
        messages += [("user", rng.choice(questions)), ("assistant", rng.choice(answers))]
    for index, story in enumerate(stories):
        messages += ask(topics, story, rng)
        topic = topics.topic(story, rng)
        if index and topic and rng.random() < 0.6:
            messages[-2:] = [("user", rng.choice(MORE).format(topic)), ("assistant", story)]
    if rng.random() < 0.12:
        questions, answers = rng.choice(THANKS)
        messages += [("user", rng.choice(questions)), ("assistant", rng.choice(answers))]
    return messages
