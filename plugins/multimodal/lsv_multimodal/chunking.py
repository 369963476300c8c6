"""Long audio in chunks that a model can hear, split where it is quiet."""

from __future__ import annotations

from typing import Any

import numpy as np

from lsv.media.processor import Audio

_SEARCHED = 1 / 6
"""The share of a chunk, from its end, in which it may be split."""
_LEAST = 1 / 30
"""The least share of the longest chunk that the last one has: models hear words in scraps that have none."""
_MOMENT = 0.02
"""Seconds over which loudness is measured."""
_MOMENTS = 5
"""Moments whose loudness is averaged."""


def split_audio(audio: Audio, seconds: float) -> list[tuple[int, int]]:
    """Chunks of at most ``seconds`` as ranges of samples, which follow one another and cover all of the audio."""
    total, most, start = len(audio.samples), int(seconds * audio.rate), 0
    chunks: list[tuple[int, int]] = []
    while total - start > most:
        last = min(start + most, total - int(_LEAST * most))
        first = start + most - int(_SEARCHED * most)
        stop = first + _quietest(audio.samples[first:last], audio.rate)
        chunks.append((start, stop))
        start = stop
    return [*chunks, (start, total)]


def _quietest(samples: np.ndarray[Any, np.dtype[np.float32]], rate: int) -> int:
    """The middle of the quietest moments, as a sample's index; where several are as quiet, the one in their middle."""
    size = max(1, int(_MOMENT * rate))
    count = len(samples) // size
    if count < _MOMENTS:
        return len(samples) // 2
    power = np.square(samples[: count * size].reshape(count, size), dtype=np.float64).mean(axis=1)
    level = np.convolve(power, np.ones(_MOMENTS), "valid")
    lowest = np.flatnonzero(level == level.min())
    return int((lowest[len(lowest) // 2] + _MOMENTS / 2) * size)
