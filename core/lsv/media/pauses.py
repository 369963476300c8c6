"""Pauses in the work of side processes.

A kernel lets whoever computes finish a time slice of some milliseconds before another gets the core, whatever their
priorities are, and a token that waits for that is late. Whoever sleeps for a moment gives the core away at once.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

SECONDS = 0.0005
"""How long to work without a pause."""
_MOMENT = 0.00002
PIECE = 1 << 14
"""Bytes of a file that decoders read at a time: less than ``SECONDS`` of work."""


class Pauses:
    """Call it often: where the last pause is long ago, it makes one."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self) -> None:
        if time.perf_counter() - self._last > SECONDS:
            time.sleep(_MOMENT)
            self._last = time.perf_counter()


pause = Pauses()


class PausingFile(io.BytesIO):
    """A file in memory whose readers pause."""

    def read(self, size: int | None = -1, /) -> bytes:
        pause()
        return super().read(size)


def in_pieces(data: memoryview, size: int) -> Iterator[memoryview]:
    """Pieces of ``size`` bytes, and what is left, with pauses between them."""
    for start in range(0, len(data), size):
        yield data[start : start + size]
        pause()
