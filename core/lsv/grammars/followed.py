"""Follows one answer through its grammar and measures the processor time that this takes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lsv.grammars import masks
from lsv.grammars.grammar import Matcher

QUICK = 0.0005
"""Seconds. If a token takes longer, the answer's next token is followed in the slow lane."""
SECONDS = 0.25
SECONDS_PER_TOKEN = 0.001
"""Time limit for following an answer: ``SECONDS`` plus this for each token."""


class Followed:
    """A matcher and its cost. One thread uses it at a time.

    Times are processor times of the thread, so that no answer fails because the machine is busy.
    """

    def __init__(self, matcher: Matcher, ignored: tuple[int, ...] = ()) -> None:
        """``ignored`` are end tokens that are forbidden as long as any other token is allowed."""
        self.matcher, self._ignored = matcher, ignored
        self.mask: masks.Mask | None = None
        """The mask of the next token, if the slow lane has computed it."""
        self.cost = 0.0
        """Seconds that the last token and its mask took."""
        self._spent = 0.0
        self._tokens = 0
        self._fault: str | None = None

    @property
    def slow(self) -> bool:
        """Whether the next mask would delay a step for too long."""
        return self.cost > QUICK

    @property
    def finished(self) -> bool:
        return self.matcher.finished

    @property
    def fault(self) -> str | None:
        """Why the answer can't go on; None while it can."""
        return self._fault or self.matcher.fault

    def accept(self, ids: Sequence[int]) -> bool:
        """Follow tokens of the answer; returns whether it can go on. A complete answer never times out."""
        began = time.thread_time()
        going = self.matcher.accept(ids)
        self.mask, self.cost = None, 0.0
        self._tokens += len(ids)
        self._charge(began)
        if going and not self.matcher.finished and self._spent > SECONDS + SECONDS_PER_TOKEN * self._tokens:
            self._fault = (
                f"following the grammar took {self._spent:.2g} s for {self._tokens} tokens, over the limit of "
                f"{SECONDS:g} s plus {1e3 * SECONDS_PER_TOKEN:g} ms a token: make the grammar less ambiguous"
            )
            return False
        return going

    def fill(self, words: masks.Mask) -> None:
        """Write the mask of the next token into ``words``."""
        began = time.thread_time()
        self.matcher.fill(words.data)
        self.forbid_ignored(words)
        self._charge(began)

    def forbid_ignored(self, words: masks.Mask) -> None:
        """Forbid ignored end tokens if any other token may follow."""
        left = words.copy()
        masks.forbid(left, self._ignored)
        if left.any():
            words[:] = left

    def _charge(self, began: float) -> None:
        seconds = time.thread_time() - began
        self.cost += seconds
        self._spent += seconds
