"""Tells a story again with another noun in its leading part, so that a topic is read, not guessed.

With each story told once, the model could learn by heart which request goes with which story. Told with
a dragon one time and a penguin the next, all that tells them apart is the request.
"""

import random
import re

# A noun may stand in for any other of its group, without making nonsense of the story.
GROUPS = tuple(
    group.split()
    for group in (
        """cat dog bird bear rabbit fox lion elephant monkey frog fish duck mouse horse cow pig sheep goat squirrel
        turtle owl bee butterfly ant snake tiger dragon wolf deer hen chicken puppy kitten bunny dinosaur unicorn
        penguin whale dolphin shark crab spider snail worm caterpillar ladybug giraffe zebra kangaroo hedgehog
        hamster parrot swan goose donkey camel octopus lizard crocodile robot monster ghost giant snowman dragonfly
        otter beaver raccoon seal rooster pony lamb panda crow eagle mole rat""",
        "prince king wizard knight pirate clown farmer cowboy fisherman sailor soldier magician astronaut",
        "princess queen witch fairy mermaid dancer ballerina nurse",
        "doctor teacher baker pilot painter singer postman policeman chef hunter driver",
        """car boat truck train plane bike ship bus tractor scooter rocket sled wagon kayak helicopter jet yacht van
        bicycle motorcycle canoe cart skateboard submarine""",
        """apple banana cake cookie pie pear sandwich pizza carrot strawberry muffin cupcake pancake melon
        peach pumpkin tomato potato lemon cherry pineapple candy pudding""",
        """ball doll kite drum balloon puzzle crayon flute trumpet guitar puppet marble yoyo hoop
        violin whistle""",
        """hat coat shoe boot scarf shirt dress glove sock ring necklace bracelet crown purse ribbon jacket skirt
        umbrella sweater mask""",
        """box key book cup spoon lamp clock mirror basket bottle bag chair table pillow blanket candle bowl rope
        hammer shovel bucket map flag pencil pen camera radio telephone vase coin jar broom bell ladder plate
        pot letter sword wand jewel diamond gem stone rock shell treasure button needle feather""",
        "flower tree leaf bush seed tulip sunflower daisy mushroom acorn cactus plant vine",
        "moon star cloud rainbow sun comet planet",
        """castle house garden forest lake river beach island mountain farm zoo tower cave bridge tent hill pond
        village palace barn cabin igloo jungle valley museum circus""",
    )
)
GROUP_OF = {noun: group for group in GROUPS for noun in group}
IRREGULAR = {
    "mouse": "mice", "wolf": "wolves", "goose": "geese", "fish": "fish", "sheep": "sheep", "deer": "deer",
    "leaf": "leaves", "fisherman": "fishermen", "postman": "postmen", "policeman": "policemen",
    "snowman": "snowmen", "potato": "potatoes", "tomato": "tomatoes", "octopus": "octopuses",
}
NAMED = re.compile(r"\b([a-z]+) (?:named|called) [A-Z]")
LOWER_WORD = re.compile(r"\b[a-z]+\b")


def plural(noun: str) -> str:
    if noun in IRREGULAR:
        return IRREGULAR[noun]
    if noun[-1] == "y" and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def with_article(noun: str) -> str:
    vowel = noun[0] in "aeio" or noun.startswith("um")  # an umbrella, but a unicorn
    return ("an " if vowel else "a ") + noun


def leading_noun(story: str) -> str | None:
    """What somebody is who is named at the beginning ("a little cat named Tom"), else the noun of a group
    that the story names most often: three times or more, first in its first half."""
    named = NAMED.search(story[:250])
    if named and named.group(1) in GROUP_OF:
        return named.group(1)
    words = LOWER_WORD.findall(story)
    opening = set(words[: len(words) // 2])
    counts = {w: words.count(w) for w in sorted(opening) if w in GROUP_OF}
    best = max(counts, key=counts.get, default=None)
    return best if best and counts[best] >= 3 else None


def recast(story: str, rng: random.Random) -> str:
    """The story with its leading noun replaced; unchanged where there is none."""
    old = leading_noun(story)
    if old is None:
        return story
    # A stand-in that the story already names would merge two of its parts.
    present = set(LOWER_WORD.findall(story.lower()))
    new = rng.choice([n for n in GROUP_OF[old] if n not in present and plural(n) not in present] or [old])
    forms = {plural(old): plural(new), old: new}
    forms |= {k.capitalize(): v.capitalize() for k, v in forms.items()}
    pattern = rf"(\b[Aa]n? )?\b({'|'.join(sorted(forms, key=len, reverse=True))})\b"

    def replace(match: re.Match) -> str:
        article, word = match.group(1) or "", forms[match.group(2)]
        if article:
            return article[0] + with_article(word.lower())[1:-len(word)] + word
        return word

    return re.sub(pattern, replace, story)
