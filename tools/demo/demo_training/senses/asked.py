"""A thing shown or played, and what is asked about it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from demo_training.question import Split, split_of
from lsv.media.processor import Content
from lsv.request.media import Modality


@dataclass(frozen=True)
class Turn:
    """A question about what is shown, with its one right answer; ``skill`` groups them in the score."""

    skill: str
    ask: str
    answer: str


@dataclass(frozen=True)
class Shown:
    """An item and what can be asked about it. The key names its content: items of one key are alike to the ear or eye
    but for details that no question is about, so the split keeps them together. ``labels`` say the same as the answers
    in numbers: the class of each of several aspects, negative where it is not defined.
    """

    modality: Modality
    content: Content
    turns: tuple[Turn, ...]
    key: str
    labels: tuple[int, ...]

    @property
    def split(self) -> Split:
        return split_of(f"{self.modality}|{self.key}")


def said(rng: Random, *ways: str) -> str:
    """One of several ways to ask, sometimes as people type."""
    ask = rng.choice(ways)
    chance = rng.random()
    if chance < 0.06:
        return ask.lower()
    if chance < 0.1:
        return ask.rstrip("?.")
    return ask.replace("colour", "color") if chance < 0.4 else ask


def counted(count: int, noun: str) -> str:
    """``3 stars``, ``1 star``, ``no stars``."""
    return f"{count or 'no'} {noun}{'s' * (count != 1)}"


def article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
