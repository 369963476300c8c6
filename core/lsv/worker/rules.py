"""What a family's rules (``lsv.request.params.TokenRules``) come to at each token of an answer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lsv.nn.sampling import Edits, Kind
from lsv.request.params import TimeMarks, TokenRules
from lsv.worker.edits import NO_EDITS, make_edits, within


class Ruling:
    """The rules of one request, over a vocabulary of so many tokens."""

    def __init__(self, rules: TokenRules, vocabulary: int) -> None:
        never = within(rules.never, vocabulary)
        self._never = make_edits(Kind.FORBID, never)
        self._not_begin = make_edits(Kind.FORBID, within(set(rules.not_begin).difference(never), vocabulary))
        self._marks = rules.marks
        self._vocabulary = vocabulary

    def limits(self, output: npt.NDArray[np.int32]) -> list[Edits]:
        """Which tokens may follow ``output``: those allowed alone, if not all are, then the forbidden ones."""
        forbidden = [self._never, NO_EDITS if len(output) else self._not_begin]
        if self._marks is None:
            return forbidden
        first = self._marks.first
        others, low, high = _permitted(self._marks, output, self._vocabulary)
        if others:
            return [make_edits(Kind.ALLOW, np.r_[others:first, low:high]), *forbidden]
        return [make_edits(Kind.FORBID, np.arange(first, low)), *forbidden]

    def rivalry(self, output: npt.NDArray[np.int32]) -> Edits:
        """Marks against all else, where both may follow."""
        if self._marks is None:
            return NO_EDITS
        first = self._marks.first
        others, low, high = _permitted(self._marks, output, self._vocabulary)
        return make_edits(Kind.OUTWEIGH, [first]) if others < first and low < high else NO_EDITS


def _permitted(marks: TimeMarks, output: npt.NDArray[np.int32], vocabulary: int) -> tuple[int, int, int]:
    """What may follow: other tokens from the first number on, and marks from the second on up to the third."""
    first = marks.first
    if not len(output):
        return first, first, min(first + marks.latest + 1, vocabulary)
    if output[-1] < first:
        return 0, max(int(output.max()) + 1, first), vocabulary
    if len(output) == 1 or output[-2] >= first:
        return 0, vocabulary, vocabulary
    return marks.text, int(output[-1]), vocabulary
