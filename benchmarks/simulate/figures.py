"""What a run comes to: counts, and distributions as counts in narrow bins."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

_BINS = 100
"""Bins for each power of ten: a value is known within 1.2 %."""


class Spread:
    """Seconds, of which only the bin is kept, and the exact sum."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0.0
        self._bins: Counter[int] = Counter()

    def add(self, seconds: float, times: int = 1) -> None:
        self.count += times
        self._sum += seconds * times
        self._bins[math.floor(_BINS * math.log10(max(seconds, 1e-9)))] += times

    @property
    def mean(self) -> float:
        return self._sum / self.count if self.count else math.nan

    def at(self, share: float) -> float:
        """The value that ``share`` of all are not above, as in 0.99."""
        left = share * self.count
        for place in sorted(self._bins):
            left -= self._bins[place]
            if left <= 0:
                return 10 ** ((place + 0.5) / _BINS)
        return math.nan


@dataclass
class Figures:
    """Of the requests that ended within the time that is looked at."""

    seconds: float = 0.0
    done: int = 0
    lost: int = 0
    refused: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft: Spread = field(default_factory=Spread)
    itl: Spread = field(default_factory=Spread)
    e2e: Spread = field(default_factory=Spread)
    replica_seconds: float = 0.0
    """Of replicas that were there, loading ones included."""
    busy_seconds: float = 0.0
    """Of steps."""

    def summary(self) -> dict[str, float]:
        """Times in milliseconds."""
        shown = {
            "requests_per_s": self.done / self.seconds,
            "tokens_per_s": self.tokens / self.seconds,
            "lost": self.lost,
            "replicas": self.replica_seconds / self.seconds,
            "busy": self.busy_seconds / max(self.replica_seconds, 1e-9),
            "cached": self.cached_tokens / max(1, self.prompt_tokens),
        }
        for name, spread in (("ttft", self.ttft), ("itl", self.itl), ("e2e", self.e2e)):
            shown[f"{name}_ms"] = 1000 * spread.mean
            shown[f"{name}_p99_ms"] = 1000 * spread.at(0.99)
        return shown
