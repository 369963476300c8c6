"""Regular expressions as trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lsv_guidance.patterns.characters import Ranges


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Concat:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Union:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    body: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Assertion:
    """An assertion: the ``start`` or ``end`` of the text, the ``edge`` of a word, or ``inside`` for any other place."""

    kind: Literal["start", "end", "edge", "inside"]


@dataclass(frozen=True, slots=True)
class LookAhead:
    body: Node
    positive: bool


Node = Chars | Concat | Union | Repeat | Assertion | LookAhead

EMPTY = Concat(())
