"""What a pass of a drafter over its own layers has room for."""

from __future__ import annotations

from lsv_runtime.devices.shapes import BatchLimits


class Room:
    """What a pass can still take: rows, and tokens. Where it is padded, each row takes as many as the longest."""

    def __init__(self, limits: BatchLimits, *, padded: bool) -> None:
        self._limits, self._padded = limits, padded
        self._rows = self._tokens = self._longest = 0

    def fit(self, tokens: int) -> int:
        """How many of a row's ``tokens`` there is room for."""
        most, rows = self._limits.max_tokens, self._rows + 1
        if rows > self._limits.max_rows:
            return 0
        if not self._padded:
            return min(tokens, most - self._tokens)
        return min(tokens, most // rows) if self._longest * rows <= most else 0

    def take(self, tokens: int) -> None:
        self._rows += 1
        self._tokens += tokens
        self._longest = max(self._longest, tokens)
