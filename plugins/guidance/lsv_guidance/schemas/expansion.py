"""The interface of the expander for negation and comparison."""

from __future__ import annotations

from typing import Protocol

from lsv_guidance.schemas.branch import Branch, Conjunction, Either, Term
from lsv_guidance.schemas.document import Document


class Expansion(Protocol):
    """See ``lsv_guidance.schemas.expand.Expander``."""

    document: Document

    def expand(self, term: Term | Either) -> list[Branch]: ...

    def expand_exactly(self, terms: Conjunction) -> list[Branch] | None: ...

    def join(self, one: list[Branch], two: list[Branch], path: str) -> list[Branch]: ...

    def child(self, term: Term, *steps: str | int, positive: bool = True) -> Term: ...

    def target(self, term: Term, keyword: str, *, positive: bool = True) -> Term: ...

    def lose(self) -> None: ...
