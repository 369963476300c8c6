"""A question with its one right answer, and the side of the split it falls on."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "test"]
Message = Mapping[str, str]

HELD_OUT_SHARE = 10
"""One key in so many is held out."""


@dataclass(frozen=True)
class Question:
    """A conversation that ends with a user's turn, and the answer the model should give to it."""

    skill: str
    messages: tuple[Message, ...]
    answer: str
    key: str


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def single(skill: str, ask: str, answer: str, key: str) -> Question:
    """A question of one user turn."""
    return Question(skill, (user(ask),), answer, f"{skill}|{key}")


def split_of(key: str) -> Split:
    """The side of the split that `key` falls on; the same on every machine."""
    digest = hashlib.sha256(key.encode()).digest()
    return "test" if int.from_bytes(digest[:4], "big") % HELD_OUT_SHARE == 0 else "train"


def correct(answer: str, text: str) -> bool:
    """Whether the generated `text` is exactly `answer`, apart from space around it."""
    return text.strip() == answer.strip()
