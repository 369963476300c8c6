"""Keeps the steps of running answers short while prompts enter: ``--max-itl-ms``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from lsv.scheduler.plan import Rows

_LEAST = 8
"""The smallest chunk: a prompt must make progress even if the limit can't be kept."""
_FIRST = 32
"""The chunk while nothing is known of what prompts cost."""
_TILE = 16
"""Large chunks are a multiple of this many tokens, the rows of a matrix tile; small ones of a quarter of it."""
_MARGIN = 0.85
"""The share of the limit that a step is planned for, since the times of equal steps vary."""
_FAR = 16384
"""Tokens of context at which a prompt token takes about twice as long as at the beginning. A rough guess, which only
matters when contexts change abruptly: otherwise the times of the latest steps account for it."""


class Pace:
    """How many prompt tokens fit into a step with decoding rows that should take at most ``limit`` seconds.

    Prompt tokens make a step longer by ``max(0, tokens - free) * cost``: computing the ``free`` ones takes no longer
    than reading the weights. What is free follows the latest steps with both kinds of rows. So the next chunk is the
    last one, corrected by how far its step was from the limit, and errors of this model correct themselves.

    Where steps are not mixed, prompts always have a step to themselves, and that may take what decoding leaves.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._alone: deque[float] = deque(maxlen=16)
        self._whole: deque[float] = deque(maxlen=4)
        self._beside: deque[tuple[float, float]] = deque(maxlen=5)

    @property
    def too_slow(self) -> float | None:
        """Seconds that decoding alone takes, if that is over the limit in all of the latest steps; else None."""
        steps = self._alone
        return _median(steps) if len(steps) == steps.maxlen and min(steps) > self._limit else None

    def prompt_tokens(self, start: int) -> int:
        """How many tokens a step may take of a prompt of which ``start`` tokens are computed already."""
        if not self._whole and not self._beside:
            return _FIRST
        cost = self._cost()
        free = _median(tokens - longer / cost for tokens, longer in self._beside) if self._beside else 0.0
        tokens = max(0.0, free) + (_MARGIN * self._limit - self._decoding()) / cost
        chunk = int(tokens / (1 + start / _FAR))
        return max(_LEAST, chunk - chunk % (_TILE if chunk >= 8 * _TILE else _TILE // 4))

    def learn(self, rows: Rows, seconds: float) -> None:
        """A step of these rows took ``seconds``. A row of one token counts as decoding: it costs the same; and so does
        one of drafts behind it. A step without rows tells nothing.
        """
        if not rows:
            return
        columns = zip(rows.start, rows.count, rows.drafts or (0,) * len(rows), strict=True)
        chunks = [(start, count) for start, count, drafts in columns if count > 1 + drafts]
        if not chunks:
            self._alone.append(seconds)
        elif seconds > 0:
            tokens = _weigh(chunks)
            if len(chunks) < len(rows):
                self._beside.append((tokens, max(0.0, seconds - self._decoding())))
            else:
                self._whole.append(seconds / tokens)

    def _cost(self) -> float:
        """Seconds by which one more token makes a step longer.

        That is at most what tokens take on average in steps of their own, or in shared steps if all time is attributed
        to them, and at least what they take on average beside decoding rows.
        """
        alone = self._decoding()
        shared = [(alone + longer) / tokens for tokens, longer in self._beside]
        least = _median(longer / tokens for tokens, longer in self._beside) if self._beside else 0.0
        return max(least, min([*self._whole, *shared]))

    def _decoding(self) -> float:
        return _median(self._alone) if self._alone else 0.0


def _median(values: Iterable[float]) -> float:
    """The upper of the two middle values if there are two."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _weigh(chunks: Iterable[tuple[int, int]]) -> float:
    """The prompt tokens of all (start, count), weighted by how much context they attend to."""
    return sum(count * (1 + (start + count / 2) / _FAR) for start, count in chunks)
