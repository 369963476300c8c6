"""One answer's way through its grammar, with the processor time that following it takes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lsv.grammars import masks
from lsv.grammars.grammar import Matcher

QUICK = 0.0005
"""Seconds: an answer whose last token took longer is followed in the slow lane for the next one."""
SECONDS = 0.25
SECONDS_PER_TOKEN = 0.001
"""What following an answer may take in all, and more for each of its tokens."""


class Followed:
    """A matcher and its costs. One thread uses it at a time.

    Seconds are the thread's processor time, so that no answer fails because the machine is busy.
    """

    def __init__(self, matcher: Matcher, ignored: tuple[int, ...] = ()) -> None:
        """``ignored`` are ends of answers that may not come as long as anything else may."""
        self.matcher, self._ignored = matcher, ignored
        self.mask: masks.Mask | None = None
        """What may follow, where the slow lane has found that."""
        self.cost = 0.0
        """Seconds that the last token took."""
        self._spent = 0.0
        self._tokens = 0
        self._fault: str | None = None

    @property
    def slow(self) -> bool:
        """Whether no step may wait for its next mask."""
        return self.cost > QUICK

    @property
    def finished(self) -> bool:
        return self.matcher.finished

    @property
    def fault(self) -> str | None:
        """Why the answer can't go on, if so."""
        return self._fault or self.matcher.fault

    def accept(self, ids: Sequence[int]) -> bool:
        """Go on by tokens of the answer; whether it can go on. One that is complete is not late."""
        began = time.thread_time()
        going = self.matcher.accept(ids)
        self.mask, self.cost = None, 0.0
        self._tokens += len(ids)
        self._charge(began)
        if going and not self.matcher.finished and self._spent > SECONDS + SECONDS_PER_TOKEN * self._tokens:
            self._fault = (
                f"following the grammar took {self._spent:.2g} s for {self._tokens} tokens, and may take {SECONDS:g} s "
                f"and {1e3 * SECONDS_PER_TOKEN:g} ms a token: make the grammar less ambiguous"
            )
            return False
        return going

    def fill(self, words: masks.Mask) -> None:
        """The mask of the next token."""
        began = time.thread_time()
        self.matcher.fill(words.data)
        self.forbid_ignored(words)
        self._charge(began)

    def forbid_ignored(self, words: masks.Mask) -> None:
        """Forbid ignored ends of the answer if any other token may follow."""
        left = words.copy()
        masks.forbid(left, self._ignored)
        if left.any():
            words[:] = left

    def _charge(self, began: float) -> None:
        seconds = time.thread_time() - began
        self.cost += seconds
        self._spent += seconds
