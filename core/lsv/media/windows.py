"""Long sounds in pieces that a model can hear, cut where it is quiet."""

from __future__ import annotations

from typing import Any

import numpy as np

from lsv.media.processor import Sound

_SEARCHED = 1 / 6
"""The share of a piece, from its end, in which it may be cut."""
_LEAST = 1 / 30
"""The share that the last piece has at least: models find words in scraps where there are none."""
_MOMENT = 0.02
_MOMENTS = 5
"""Moments of so many seconds are measured, so many of them together."""


def cut_sound(sound: Sound, seconds: float) -> list[tuple[int, int]]:
    """Pieces of at most ``seconds`` as ranges of samples, which follow one another and together are the sound."""
    total, most, start = len(sound.samples), int(seconds * sound.rate), 0
    pieces: list[tuple[int, int]] = []
    while total - start > most:
        last = min(start + most, total - int(_LEAST * most))
        first = start + most - int(_SEARCHED * most)
        stop = first + _quietest(sound.samples[first:last], sound.rate)
        pieces.append((start, stop))
        start = stop
    return [*pieces, (start, total)]


def _quietest(samples: np.ndarray[Any, np.dtype[np.float32]], rate: int) -> int:
    """The middle of the quietest moments, in samples; of several that are as quiet, those in their middle."""
    size = max(1, int(_MOMENT * rate))
    count = len(samples) // size
    if count < _MOMENTS:
        return len(samples) // 2
    power = np.square(samples[: count * size].reshape(count, size), dtype=np.float64).mean(axis=1)
    level = np.convolve(power, np.ones(_MOMENTS), "valid")
    lowest = np.flatnonzero(level == level.min())
    return int((lowest[len(lowest) // 2] + _MOMENTS / 2) * size)
