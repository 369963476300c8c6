"""Two runs over the same questions and text, question by question."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Protocol

import msgspec

from lsv_bench.eval.accuracy import Accuracy, Answer
from lsv_bench.eval.perplexity import Perplexity

_NORMAL_95 = 1.96


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """A run against the one it is compared with; what one of them did not measure is None.

    ``kept`` is its accuracy in per cent of the other's, None where that is zero. ``gained`` and ``lost`` count
    questions that only it, or only the other, got right; ``p`` is how likely a split as uneven as theirs is when
    neither is better. ``same`` counts equal answers, right or wrong. ``perplexity_ratio`` is give or take
    ``ratio_error``, half its 95 % interval; None for a text of one window.
    """

    kept: float | None = None
    gained: int | None = None
    lost: int | None = None
    same: int | None = None
    p: float | None = None
    perplexity_ratio: float | None = None
    ratio_error: float | None = None


class Measured(Protocol):
    """What a run found out."""

    @property
    def accuracy(self) -> Accuracy | None: ...
    @property
    def perplexity(self) -> Perplexity | None: ...


def compare(run: Measured, baseline: Measured) -> Paired:
    """Both must have been asked the same questions in the same order, and the same text."""
    ratio = error = None
    if run.perplexity is not None and baseline.perplexity is not None:
        ratio, error = compare_texts(run.perplexity, baseline.perplexity)
    accuracy, other = run.accuracy, baseline.accuracy
    if accuracy is None or other is None:
        return Paired(perplexity_ratio=ratio, ratio_error=error)
    gained, lost = count_changes(accuracy.answers, other.answers)
    return Paired(
        kept=100 * accuracy.right / other.right if other.right else None,
        gained=gained,
        lost=lost,
        same=sum(one.text == two.text for one, two in zip(accuracy.answers, other.answers, strict=True)),
        p=mcnemar(gained, lost),
        perplexity_ratio=ratio,
        ratio_error=error,
    )


def compare_texts(one: Perplexity, other: Perplexity) -> tuple[float, float | None]:
    """Ratio of perplexities, and half its 95 % interval from the windows' differences, taken as independent."""
    ratio = one.perplexity / other.perplexity
    differences = [mine - theirs for mine, theirs in zip(one.parts, other.parts, strict=True)]
    if len(differences) < 2:
        return ratio, None
    deviation = statistics.stdev(differences) * math.sqrt(len(differences)) / one.tokens
    return ratio, ratio * _NORMAL_95 * deviation


def count_changes(answers: Sequence[Answer], before: Sequence[Answer]) -> tuple[int, int]:
    """How many questions became right, and how many became wrong."""
    pairs = [(one.right, two.right) for one, two in zip(answers, before, strict=True)]
    return pairs.count((True, False)), pairs.count((False, True))


def mcnemar(gained: int, lost: int) -> float:
    """The two-sided p value of McNemar's test in its exact form: of ``gained + lost`` fair coins, a split at least as
    uneven as this. Doubled, and at most 1 (Psychometrika 12, 1947).
    """
    total = gained + lost
    tail = sum(math.comb(total, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / (1 << total))
