"""When requests arrive: at once, or by a gamma process whose rate may rise."""

from __future__ import annotations

import math
import random
from itertools import accumulate
from typing import Literal

import msgspec


class Arrivals(msgspec.Struct, frozen=True):
    """``rate`` in requests per second may be infinite.

    ``burstiness`` is the shape of the gamma distribution of the gaps: 1 is a Poisson process, less comes in bursts,
    more comes evenly. With ``ramp`` the rate rises from ``start_rate`` at the first gap to ``rate`` at the last.
    """

    rate: float = math.inf
    burstiness: float = 1.0
    ramp: Literal["linear", "exponential"] | None = None
    start_rate: float = 1.0

    def times(self, count: int, seed: int) -> list[float]:
        """Seconds from the start at which ``count`` requests arrive; the first comes at once."""
        if math.isinf(self.rate):
            return [0.0] * count
        rng = random.Random(seed)
        gaps = [
            rng.gammavariate(self.burstiness, 1 / (self.burstiness * self._rate_at(index / max(1, count - 2))))
            for index in range(count - 1)
        ]
        return [0.0, *accumulate(gaps)][:count]

    def _rate_at(self, progress: float) -> float:
        """Requests per second when this share (0 to 1) of the gaps is over."""
        if self.ramp == "linear":
            return self.start_rate + (self.rate - self.start_rate) * progress
        if self.ramp == "exponential":
            return self.start_rate * float((self.rate / self.start_rate) ** progress)
        return self.rate
