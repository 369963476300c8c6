"""Which experts have to change ranks, given how many tokens chose each. The same on all ranks, as nothing is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_WORTH = 0.01
"""What an exchange has to take off the fullest rank at least, as a share of a rank's mean load: weights of two experts
are sent for it."""
_NOISE = 2.0
"""And as a multiple of how much a rank's load varies by chance alone, the root of its mean: few tokens say little."""


def choose_exchanges(loads: Sequence[int], owners: Sequence[int], ranks: int) -> list[tuple[int, int]]:
    """Pairs of experts that take each other's places, in this order: one of the fullest rank, and a lighter one.

    ``loads`` and ``owners`` are the tokens and the rank of each expert. Each time it is the pair that leaves the fuller
    of its two ranks with the least. Every rank keeps as many experts as it has, and most of them.
    """
    tokens, places = np.array(loads, np.int64), np.array(owners, np.int64)
    mean = tokens.sum() / ranks
    least = max(1.0, _WORTH * mean, _NOISE * mean**0.5)
    chosen: list[tuple[int, int]] = []
    while True:
        sums = rank_loads(tokens, places, ranks)
        fullest = int(sums.argmax())
        own, others = np.flatnonzero(places == fullest), np.flatnonzero(places != fullest)
        fewer = tokens[own, None] - tokens[None, others]
        left = np.maximum(sums[fullest] - fewer, sums[places[others]] + fewer)
        best = int(left.argmin())
        if sums[fullest] - left.flat[best] < least:
            return chosen
        one, other = int(own[best // len(others)]), int(others[best % len(others)])
        places[one], places[other] = places[other], places[one]
        chosen.append((one, other))


def rank_loads(loads: npt.ArrayLike, owners: npt.ArrayLike, ranks: int) -> npt.NDArray[np.int64]:
    """Tokens of each rank's experts, int64 [ranks]."""
    return np.bincount(owners, loads, ranks).astype(np.int64)
