"""The random numbers of sampling, a pure function of (seed, position, stream): the generator Philox4x32-10.

Source: Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). A sample depends on nothing
but its request's seed and its position, not on the batch, the order of rows or preemption.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)


class Stream(enum.IntEnum):
    """What a number is used for; equal positions of different streams are independent."""

    SAMPLE = 0


def philox(counter: Words, key: Words) -> Words:
    """Philox4x32-10: ``counter`` uint32 [4, n] and ``key`` uint32 [2, n], low words first -> random uint32 [4, n]."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _KEY_STEPS[0], k1 + _KEY_STEPS[1]
    return np.stack((c0, c1, c2, c3))


def _multiply(factor: np.uint64, words: Words) -> tuple[Words, Words]:
    """High and low words of 32 x 32 bit products."""
    product = factor * words.astype(np.uint64)
    return (product >> _WORD_BITS).astype(np.uint32), (product & _LOW_WORD).astype(np.uint32)


def uniform(seeds: Sequence[int], positions: Sequence[int], stream: Stream = Stream.SAMPLE) -> npt.NDArray[np.int64]:
    """One number for each pair of seed and position: int64 [n], of which ``value / 2**32`` is uniform in [0, 1).

    The seed's 64 low bits are the key (a negative seed by its two's complement), the position fills the
    counter's lower half and the stream its third word.
    """
    key = _words([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds])
    counter = np.zeros((4, len(positions)), np.uint32)
    counter[:2] = _words(positions)
    counter[2] = stream
    draws: npt.NDArray[np.int64] = philox(counter, key)[0].astype(np.int64)
    return draws


def _words(values: Sequence[int]) -> Words:
    """64-bit values as [2, n] words, the low one first."""
    wide = np.array(values, dtype=np.uint64)
    return np.stack(((wide & _LOW_WORD).astype(np.uint32), (wide >> _WORD_BITS).astype(np.uint32)))
