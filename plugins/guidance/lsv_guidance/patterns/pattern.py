"""A regular expression of a schema: the texts that it matches, and its form for llguidance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property

from lsv_guidance.patterns.automaton import Language
from lsv_guidance.patterns.nondeterministic import Machine
from lsv_guidance.patterns.syntax import read_pattern
from lsv_guidance.patterns.text import write_language, write_search
from lsv_guidance.patterns.tree import Assertion, Concat, LookAhead, Node, Union


class Pattern:
    """Raises ``UnreadablePattern`` for an invalid regular expression, and for backreferences and look-behind."""

    def __init__(self, text: str) -> None:
        self.node = read_pattern(text)

    @cached_property
    def language(self) -> Language:
        """Raises ``TooComplex``."""
        return _language_of(self.node)

    def write(self) -> str:
        """The pattern in llguidance's notation. Raises ``TooComplex``."""
        return write_search(self.node) or write_language(self.language)


_known: ContextVar[dict[str, Pattern] | None] = ContextVar("patterns of a grammar", default=None)


@contextmanager
def remember_patterns() -> Iterator[None]:
    """Cache patterns until the block ends, for one grammar only.

    A cache across grammars would let clients measure which patterns others have used.
    """
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def pattern_of(text: str) -> Pattern:
    known = _known.get()
    if known is None:
        return Pattern(text)
    if text not in known:
        known[text] = Pattern(text)
    return known[text]


def _language_of(node: Node) -> Language:
    """Look-ahead at the beginning, after ``^``, is a separate condition on the whole text."""
    if isinstance(node, Union):
        first, *others = map(_language_of, node.options)
        for other in others:
            first = first | other
        return first
    parts = list(node.parts) if isinstance(node, Concat) else [node]
    start = Assertion("start")
    if parts[:1] != [start]:
        return Language.of(Machine(node))
    looks, rest = list[LookAhead](), parts[1:]
    while rest and isinstance(rest[0], LookAhead):
        looks.append(rest.pop(0))
    found = Language.of(Machine(Concat((start, *rest))))
    for look in looks:
        seen = Language.of(Machine(Concat((start, look.body))))
        found = found & seen if look.positive else found - seen
    return found
