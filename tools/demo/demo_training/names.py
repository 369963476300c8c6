"""Invented names and words: material for questions that no table can answer."""

from random import Random

from demo_training import world

ONSETS = ("b", "br", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pl", "r",
          "s", "sh", "sk", "st", "t", "tr", "v", "w", "y", "z")  # fmt: skip
VOWELS = ("a", "e", "i", "o", "u", "ai", "ee", "oo", "ou")
CODAS = ("", "", "", "b", "ck", "d", "g", "k", "l", "ll", "m", "n", "nd", "p", "r", "rt", "s", "sk", "t",
         "x", "z")  # fmt: skip

TAKEN = frozenset(
    {name.lower() for name in (*world.PERSON, *world.TOWN, *world.STRANGERS)}
    | {name.lower() for name in (*world.LAND_CAPITALS, *world.COUNTRY_CAPITALS, *world.COUNTRY_CAPITALS.values())}
    | {person.pet_name.lower() for person in world.PEOPLE}
    | {thing.name for thing in world.THINGS}
    | {animal.name for animal in world.ANIMALS}
    | set(world.WORDS)
)


def invented_word(rng: Random) -> str:
    """A word of one to three syllables that is not a word of the world."""
    while True:
        syllables = rng.choices((1, 2, 3), (2, 4, 1))[0]
        word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(syllables)) + rng.choice(CODAS)
        if len(word) > 2 and word not in TAKEN:
            return word


def invented_name(rng: Random) -> str:
    return invented_word(rng).capitalize()


def any_name(rng: Random) -> str:
    """A name for the user or for a passing stranger: a common one or an invented one."""
    return rng.choice(world.STRANGERS) if rng.random() < 0.5 else invented_name(rng)


def any_words(rng: Random, least: int, most: int) -> list[str]:
    """Between `least` and `most` words of the fixed list."""
    return rng.sample(world.WORDS, rng.randint(least, most))
