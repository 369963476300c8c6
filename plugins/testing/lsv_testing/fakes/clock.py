"""A clock that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    """Callable like ``time.monotonic``; ``advance`` also serves as ``sleep``."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "time does not run backwards"
        self.now += seconds
