"""Tasks on given words: repeat, reverse, spell, translate; held out by the words."""

from random import Random

from demo_training import world
from demo_training.names import any_name, any_words, invented_word
from demo_training.question import Question, single

REPEAT_ASKS = (
    "Repeat after me: {}", "Repeat: {}", "Say this: {}", "Echo: {}", "Please repeat this: {}",
    "Repeat these words: {}", "Say: {}", "Write this again: {}",
)  # fmt: skip


def anything(rng: Random) -> str:
    """A word, an invented word, a name or a number."""
    kind = rng.randrange(6)
    if kind == 0:
        return str(rng.randint(0, 9999))
    if kind == 1:
        return invented_word(rng)
    if kind == 2:
        return any_name(rng)
    return rng.choice(world.WORDS)


def repeat(rng: Random) -> Question:
    text = " ".join(anything(rng) for _ in range(rng.randint(1, 8)))
    return single("repeat", rng.choice(REPEAT_ASKS).format(text), text, text)


def reverse(rng: Random) -> Question:
    """Two to five words in the other order."""
    words = any_words(rng, 2, 5)
    given = " ".join(words)
    ask = rng.choice(("Reverse these words: {}", "Reverse the words: {}",
                      "Say these words in reverse order: {}", "Reverse the order of these words: {}",
                      "Write these words backwards: {}"))  # fmt: skip
    return single("reverse", ask.format(given), " ".join(reversed(words)), given)


def capital_letters(rng: Random) -> Question:
    given = " ".join(any_words(rng, 1, 3))
    ask = rng.choice(("Write in capital letters: {}", "Write this in capitals: {}", "Make this uppercase: {}",
                      "Uppercase: {}", "Shout: {}"))  # fmt: skip
    return single("capital letters", ask.format(given), given.upper(), f"{given}|{ask if ' ' not in given else ''}")


def spell(rng: Random) -> Question:
    word = rng.choice(world.WORDS)
    ask = rng.choice(("Spell {}.", "Spell the word {}.", "How do you spell {}?", "How is {} spelled?",
                      "What are the letters of {}?", "Please spell {}.", "Can you spell {}?"))  # fmt: skip
    return single("spell", ask.format(word), "-".join(word), ask.format(word))


def first_and_last(rng: Random) -> Question:
    """The first or the last of three to six words, or how many they are."""
    words = any_words(rng, 2, 7)
    given = " ".join(words)
    kind = rng.randrange(3)
    if kind == 2:
        ask = rng.choice(("How many words are these: {}", "Count these words: {}", "How many words: {}"))
        return single("first and last", ask.format(given), f"There are {len(words)} words.", given)
    place = ("first", "last")[kind]
    ask = rng.choice(("What is the {} word of: {}", "Which word is {}: {}", "Give me the {} word: {}"))
    return single("first and last", ask.format(place, given), f"The {place} word is {words[-kind]}.", given)


def lornish_phrase(rng: Random) -> str:
    """A noun, mostly with one or two adjectives, in English."""
    adjectives = rng.sample(world.LORNISH_ADJECTIVES, rng.choices((0, 1, 2), (1, 3, 2))[0])
    return " ".join((*adjectives, rng.choice(world.LORNISH_NOUNS)))


def translate(rng: Random) -> Question:
    """English into Lornish or back, word by word."""
    english = lornish_phrase(rng)
    lornish = " ".join(world.LORNISH[word] for word in english.split())
    if rng.random() < 0.5:
        ask = rng.choice(("Translate into Lornish: {}", "Say in Lornish: {}", "What is the Lornish for: {}",
                          "How do you say this in Lornish: {}"))  # fmt: skip
        given, answer = english, lornish
    else:
        ask = rng.choice(("Translate into English: {}", "Say in English: {}", "What is the English for: {}",
                          "What does this mean in English: {}"))  # fmt: skip
        given, answer = lornish, english
    # A single word is a fact and is held out in a phrasing; a phrase is held out as a whole.
    return single("translate", ask.format(given), answer, given if " " in given else ask.format(given))
