"""Follows answers that begin with thoughts ahead of the sampled tokens, for drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lsv.grammars.grammar import RewindableMatcher, Vocabulary
from lsv.grammars.thinking import ThinkingMatcher
from lsv.request.thinking import Thinking


class _Place(NamedTuple):
    """A saved state of the matcher."""

    step: Callable[[int], bool]
    used: int
    closing: tuple[int, ...]
    seen: bytes
    taken: tuple[int, ...]
    given: int
    """Tokens that the form had accepted since the first ``advance``."""


class RewindableThinkingMatcher(ThinkingMatcher):
    """A ``ThinkingMatcher`` that is also a ``RewindableMatcher``, for forms that can be rewound."""

    def __init__(self, answer: RewindableMatcher, vocabulary: Vocabulary, thinking: Thinking) -> None:
        super().__init__(answer, vocabulary, thinking)
        self._form = answer
        self._given = 0
        self._passed: list[_Place] = []
        """The state before each token that ``advance`` accepted."""

    def advance(self, ids: Sequence[int]) -> int:
        for count, token in enumerate(ids):
            if not self._allows(token):
                return count
            self._passed.append(self._place())
            if not self._step(token):
                self.rollback(1)
                return count
        return len(ids)

    def rollback(self, count: int) -> None:
        place = self._passed[-count] if count else self._place()
        del self._passed[len(self._passed) - count :]
        self._form.rollback(self._given - place.given)
        self._step, self._used, self._closing, self._seen, self._taken, self._given = place
        self._fault = None

    def _place(self) -> _Place:
        return _Place(self._step, self._used, self._closing, self._seen, self._taken, self._given)

    def _allows(self, token: int) -> bool:
        """Whether the thoughts allow a token, which does not end the answer. The form is not asked."""
        if self._step == self._open:  # the beginning of an answer is known once it has been sampled
            return self._formless or (self._taken != () and token in self._go_on_opening())
        return self._step == self._follow or not self._closes or token == self._closing[0]

    def _give(self, ids: Sequence[int]) -> bool:
        if not self._passed:
            return super()._give(ids)
        taken = self._form.advance(ids)
        self._given += taken
        return taken == len(ids)
