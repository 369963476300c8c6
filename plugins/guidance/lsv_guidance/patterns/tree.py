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
    """A place in the text: its ``start``, its ``end``, an ``edge`` of a word, or a place ``inside`` or outside one."""

    kind: Literal["start", "end", "edge", "inside"]


@dataclass(frozen=True, slots=True)
class LookAhead:
    body: Node
    positive: bool


Node = Chars | Concat | Union | Repeat | Assertion | LookAhead

EMPTY = Concat(())
