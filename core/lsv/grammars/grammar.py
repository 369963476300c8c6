"""The seam to grammar back ends: what says which tokens may follow. It works in the engine's process, without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from lsv.errors import BadRequest
from lsv.request.structured import StructuredOutputsParams


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model, as grammars see them."""

    tokens: Sequence[bytes]
    """What each token stands for; empty for ids without a token. As many as a row of logits is wide."""
    special: frozenset[int]
    """Tokens that are no text, such as the ends of answers."""
    eos: tuple[int, ...]
    """Tokens that end an answer; at least one."""
    encode: Callable[[str], list[int]]
    """The ids of a text, without special tokens."""


class Matcher(Protocol):
    """Follows one answer through a grammar. What it can't go on with it says in ``fault``."""

    @property
    def finished(self) -> bool:
        """Whether nothing but the end may follow."""
        ...

    @property
    def fault(self) -> str | None:
        """Why it can't say what may follow, for the user; None while it can."""
        ...

    def accept(self, ids: Sequence[int]) -> bool:
        """Go on by tokens of the answer; False, with a ``fault``, where one of them may not follow."""
        ...

    def fill(self, row: memoryview) -> None:
        """Set the bits of the tokens that may follow, ends of the answer among them, and clear all others.

        ``row`` is writable and has 32-bit words, the lowest bits first. With a ``fault``, all are cleared. Called in a
        thread beside the step, never at the same time as ``accept``.
        """
        ...


class RewindableMatcher(Matcher, Protocol):
    """A matcher that can go ahead of its answer and come back. Drafts are verified for answers that have such a one."""

    def advance(self, ids: Sequence[int]) -> int:
        """Go on by as many of these tokens as may follow, and say how many those are. What may not follow is no fault;
        where nothing but the end may follow, nothing does. ``ids`` has no ends of answers.
        """
        ...

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` tokens, all of which ``advance`` took, and a ``fault`` that came meanwhile.

        Everything is as it was before them, what ``fill`` gives included. Like ``advance`` called by the engine or in
        the thread of ``fill``, one at a time.
        """
        ...


def rewindable(matcher: Matcher) -> RewindableMatcher | None:
    """The matcher, if it can go ahead of its answer."""
    return cast(RewindableMatcher, matcher) if hasattr(matcher, "advance") and hasattr(matcher, "rollback") else None


class Grammar(Protocol):
    """What answers must be, compiled. Many follow one at a time."""

    def begin(self) -> Matcher:
        """For an answer that begins; cheap."""
        ...


class GrammarBackend(Protocol):
    """Compiles grammars; made once for a vocabulary, in a thread beside the engine's."""

    def compile(self, asked: StructuredOutputsParams) -> Grammar:
        """Raises ``BadRequest`` for what it can't follow exactly. Called in several threads; must end within seconds
        and let other threads go on.
        """
        ...


def unfollowable(asked: StructuredOutputsParams, why: str) -> BadRequest:
    """What a back end refuses a form with."""
    return BadRequest(f"structured_outputs: this {asked.form} can't be followed: {why}", param="structured_outputs")
