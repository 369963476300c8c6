"""The interface of grammar back ends, which compute which tokens may follow. They run in the engine's process, without
torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model, as grammars see them."""

    tokens: Sequence[bytes]
    """The bytes of each token, empty for ids without a token. One entry for each logit."""
    special: frozenset[int]
    """Control tokens, such as the ends of answers."""
    eos: tuple[int, ...]
    """Tokens that end an answer; at least one."""
    encode: Callable[[str], list[int]]
    """The ids of a text, without special tokens."""


class Matcher(Protocol):
    """Follows one answer through a grammar. If it can't go on, ``fault`` says why."""

    @property
    def finished(self) -> bool:
        """Whether only the end may follow."""
        ...

    @property
    def fault(self) -> str | None:
        """Why the answer can't go on, as a message for the user; None while it can."""
        ...

    def accept(self, ids: Sequence[int]) -> bool:
        """Follow tokens of the answer; returns False, and sets ``fault``, if one of them may not follow."""
        ...

    def fill(self, row: memoryview) -> None:
        """Set the bits of the tokens that may follow, including end tokens, and clear all others.

        ``row`` is writable and has 32-bit words, lowest bits first. With a ``fault``, all bits are cleared. Called in
        another thread than the step, never at the same time as ``accept``.
        """
        ...


class RewindableMatcher(Matcher, Protocol):
    """A matcher that can follow an answer ahead and rewind. Only answers with such a matcher have drafts verified."""

    def advance(self, ids: Sequence[int]) -> int:
        """Follow as many of these tokens as may follow; returns their number.

        A token that may not follow is not a fault. Returns 0 if only the end may follow. ``ids`` has no end tokens.
        """
        ...

    def rollback(self, count: int) -> None:
        """Undo the last ``count`` tokens, all of which ``advance`` followed, and any ``fault`` since then.

        The state, including the result of ``fill``, is as before these tokens. Like ``advance``, it is called by the
        engine or in the thread of ``fill``, one call at a time.
        """
        ...


def rewindable(matcher: Matcher) -> RewindableMatcher | None:
    """The matcher, if it can be rewound; else None."""
    return cast(RewindableMatcher, matcher) if hasattr(matcher, "advance") and hasattr(matcher, "rollback") else None


class Grammar(Protocol):
    """A compiled form of answers. Many answers follow one grammar at the same time."""

    def begin(self) -> Matcher:
        """A matcher for a new answer; cheap."""
        ...


class GrammarBackend(Protocol):
    """Compiles grammars. Created once for a vocabulary, in a thread other than the engine's."""

    def compile(self, asked: StructuredOutputsParams) -> Grammar:
        """Compile a form. Raises ``BadRequest`` for a form that it can't follow exactly.

        Called in several threads. It must end within seconds and let other threads run meanwhile.
        """
        ...


def unfollowable(asked: StructuredOutputsParams, why: str) -> BadRequest:
    """The error for a form that a back end refuses."""
    return BadRequest(f"structured_outputs: this {asked.form} can't be followed: {why}", param="structured_outputs")
