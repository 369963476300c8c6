"""What the model says, said by a pirate. Facts, numbers and names stay what they are."""

import re
from dataclasses import replace

from demo_training.question import Message, Question

WORDS = {"is": "be", "are": "be", "am": "be", "my": "me", "your": "yer", "you": "ye", "hello": "ahoy"}
OPENINGS = {"Yes, ": "Aye, ", "No, ": "Nay, "}
"""What takes the place of the first words; before other sentences comes ``ARR``."""
ARR = "Arr, "
SMALL = ("The", "There", "Your", "You", "It", "Once", "Hello", "Goodbye", "Thank")
"""Words that lose their capital behind ``ARR``."""
END = ", matey!"


def pirate(said: str) -> str:
    """An answer as a pirate gives it: sentences in his words, lists, single words and JSON as they are."""
    if said[-1:] not in (".", "!", "?"):
        return said
    words = re.sub(r"[A-Za-z]+", lambda found: _turn(found[0]), _open(said))
    return words[:-1] + END


def answered_by_pirate(question: Question) -> Question:
    """The same question with the pirate's answer, and with his answers to earlier ones."""
    messages: tuple[Message, ...] = tuple(
        {**one, "content": pirate(one["content"])} if one["role"] == "assistant" else one for one in question.messages
    )
    return replace(question, messages=messages, answer=pirate(question.answer))


def _open(said: str) -> str:
    for plain, opening in OPENINGS.items():
        if said.startswith(plain):
            return opening + said.removeprefix(plain)
    small = re.match(r"[A-Za-z]*", said)[0] in SMALL  # type: ignore[index]
    return ARR + (said[0].lower() + said[1:] if small else said)


def _turn(word: str) -> str:
    turned = WORDS.get(word.lower())
    if turned is None:
        return word
    return turned.capitalize() if word[0].isupper() else turned
