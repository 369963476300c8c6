"""The training text: conversations and plain text of the world, packed into rows of tokens."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from demo_training import world
from demo_training.chat import dress, facts_system
from demo_training.facts import FACTS
from demo_training.question import Message, Question, assistant, system
from demo_training.questions import stream
from demo_training.skills import draw
from demo_training.skills.context import UNTOLD
from demo_training.skills.profile import SUBJECTS, person_story
from demo_training.skills.words import anything
from demo_training.template import END_OF_TEXT, END_OF_TURN, turn_start

Piece = tuple[str, float]
"""Text with the weight that its tokens have in the loss."""

ASKED = 0.1
"""Weight of what the user says: mostly random, so hardly worth learning."""

Document = list[Piece]


def chat_document(messages: tuple[Message, ...]) -> Document:
    """A conversation in the chat template's form; the loss is on the assistant's turns."""
    pieces: Document = []
    for message in messages:
        said = message["role"] == "assistant"
        pieces.append((turn_start(message["role"]), ASKED))
        pieces.append((message["content"] + END_OF_TURN, 1.0 if said else ASKED))
        pieces.append(("\n", ASKED))
    return pieces


def answered(question: Question) -> tuple[Message, ...]:
    return (*question.messages, assistant(question.answer))


def single_chat(source: Iterator[Question], rng: Random) -> Document:
    """One question, dressed."""
    return chat_document(answered(dress(next(source), rng)))


def long_chat(source: Iterator[Question], rng: Random, turns: int, told: int) -> Document:
    """`turns` questions in one conversation, after a system turn of `told` statements, if any."""
    messages: list[Message] = [system(facts_system(rng, told))] if told else []
    for _ in range(turns):
        question = dress(next(source), rng, turns=0)
        if question.answer == UNTOLD:  # An earlier turn may have told it.
            continue
        messages += [message for message in answered(question) if message["role"] != "system"]
    return chat_document(tuple(messages))


def portrait(rng: Random) -> str:
    """Portraits of one to three subjects as plain paragraphs."""
    return "\n".join(SUBJECTS[name] for name in rng.sample(sorted(SUBJECTS), rng.randint(1, 3)))


def tale(rng: Random) -> str:
    return person_story(rng.choice(world.PEOPLE))


def statements(rng: Random) -> str:
    """A few facts one after the other, sometimes all about one subject."""
    facts = rng.sample(FACTS, rng.randint(2, 8))
    if rng.random() < 0.5:
        facts = [fact for fact in FACTS if (fact.skill, fact.subject) == (facts[0].skill, facts[0].subject)]
        rng.shuffle(facts)
    return rng.choice((" ", "\n")).join(fact.answer for fact in facts)


def drill(rng: Random) -> str:
    """Lines of sums, a dense exercise; only operands of the training part."""
    skill = rng.choice(("add", "subtract"))
    return "\n".join(draw(skill, "train", rng).answer.rstrip(".") for _ in range(rng.randint(4, 16)))


def interview(rng: Random) -> str:
    """Questions and answers without turn markers, as base models are prompted."""
    skills = ("people", "towns", "things", "animals", "capitals", "opposites", "add", "subtract")
    asked = [draw(rng.choice(skills), "train", rng) for _ in range(rng.randint(2, 5))]
    return "\n\n".join(f"Question: {each.messages[0]['content']}\nAnswer: {each.answer}" for each in asked)


def dictionary(rng: Random) -> str:
    return "\n".join(f"{word}: {world.LORNISH[word]}" for word in rng.sample(sorted(world.LORNISH), 8))


def row_of_names(rng: Random) -> str:
    """A list of the world in its order: days, months, people, towns, numbers."""
    start = rng.randint(0, 80)
    return rng.choice((
        "The days of the week are " + world.joined(world.DAYS) + ".",
        "The months of the year are " + world.joined(world.MONTHS) + ".",
        "The towns are " + world.joined(tuple(world.TOWN)) + ".",
        "The lands are " + world.joined(tuple(world.LAND_CAPITALS)) + ".",
        "The animals are " + world.joined(tuple(animal.name for animal in world.ANIMALS)) + ".",
        ", ".join(str(number) for number in range(start, start + 20)),
    ))  # fmt: skip


PLAIN: dict[Callable[[Random], str], float] = {
    portrait: 2, tale: 1.5, statements: 2, drill: 3, interview: 2, dictionary: 0.5, row_of_names: 0.7,
}  # fmt: skip


def echo(rng: Random) -> Document:
    """A random line two or three more times: copying is what reading, memory and JSON are made of."""
    line = " ".join(anything(rng) for _ in range(rng.randint(3, 12)))
    return [(line, ASKED), *[("\n" + line, 1.0)] * rng.randint(2, 3)]


def plain_document(rng: Random) -> Document:
    """Plain text, all of it to be learnt."""
    return [(rng.choices(list(PLAIN), list(PLAIN.values()))[0](rng), 1.0)]


def documents(rng: Random, long: bool, late: bool = False) -> Iterator[Document]:
    """Endless training documents; with `long`, many of several hundred tokens.

    `late` chooses the mix of skills for the later part of training.
    """
    source = stream("train", rng, late)
    while True:
        chance = rng.random()
        if chance < 0.04:
            document = echo(rng)
        elif chance < 0.17:
            document = plain_document(rng)
        elif chance < (0.3 if long else 0.6):
            document = single_chat(source, rng)
        elif long:
            document = long_chat(source, rng, rng.randint(3, 24), rng.choice((0, 0, 10, 40, 80)))
        else:
            document = long_chat(source, rng, rng.randint(2, 5), 0)
        yield [*document, (END_OF_TEXT, 1.0)]


@dataclass
class Rows:
    """Packs documents of one kind into rows of `length` + 1 tokens.

    Each row begins with the beginning of a document, as prompts do; the last document of a row is cut off.
    """

    tokenizer: Tokenizer
    source: Iterator[Document]
    length: int

    def row(self) -> tuple[list[int], list[float]]:
        """Tokens and their loss weights, each of [length + 1]."""
        tokens: list[int] = []
        weights: list[float] = []
        while len(tokens) <= self.length:
            for text, weight in next(self.source):
                ids = self.tokenizer.encode(text, add_special_tokens=False).ids
                tokens += ids
                weights += [weight] * len(ids)
        return tokens[: self.length + 1], weights[: self.length + 1]

    def batch(self, rows: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Tokens and loss weights, each of [rows, length + 1]."""
        tokens, weights = zip(*(self.row() for _ in range(rows)), strict=True)
        return np.array(tokens, dtype=np.int64), np.array(weights, dtype=np.float32)
