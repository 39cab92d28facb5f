"""Gives the people of a story other names, so that one story teaches many."""

import random
import re

GIRLS = """Lily Mia Lucy Anna Sara Sally Amy Jane Molly Sarah Lila Emma Jill Mary Ella Jenny Bella Kate
Julie Lola Tina Ruby Betty Susie Sophie Linda Luna Gina Becky Emily Alice Zoe Ellie Nina Maya Katie
Lisa Polly Penny Rosie Clara Nora Ida Ivy Eva Hannah Mandy Sue Jen Lulu""".split()
BOYS = """Tim Tom Ben Sam Jack Bob John Joe Billy Jimmy Leo Andy Jim Benny Bobby Jake Teddy Fred Peter
George James Frank Henry Dan Pete Thomas Tony Jason Harry Charlie Toby Danny Ted Alex Johnny Daniel
Oliver Luke Adam Nick Mike Dave Eddie Noah Oscar Paul Timmy Tommy Sammy Finn""".split()
WORD = re.compile(r"\b[A-Z][a-z]+\b")


def rename(story: str, rng: random.Random) -> str:
    """Maps every girl's name to another girl's and every boy's to another boy's, no two to the same.

    Names that share a stem (Tim and Timmy) often mean one person, so such a story keeps them.
    """
    present = set(WORD.findall(story))
    mapping = {}
    for names in (GIRLS, BOYS):
        used = [name for name in names if name in present]
        if any(a != b and b.startswith(a) for a in used for b in used):
            continue
        # The usual names stay the likeliest: half of the draws are from the first ten.
        free = [name for name in names if name not in present]
        pool = free[:10] if rng.random() < 0.5 and len(free[:10]) > len(used) else free
        if len(used) <= len(pool):
            mapping.update(zip(used, rng.sample(pool, len(used))))
    return WORD.sub(lambda match: mapping.get(match.group(), match.group()), story)
