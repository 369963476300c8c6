"""Measures what a test holds of an emulated device's memory."""

from __future__ import annotations

from lsv_runtime.emulation.placement.device import placement
from suite.heap import collect_frozen


class EmulatedMemory:
    """Bytes of device 0, beyond those that earlier tests of this process still hold."""

    def __init__(self) -> None:
        placed = placement()
        assert placed is not None, "the emulated device can't be compiled here"
        collect_frozen()
        self._placed, self._before = placed, placed.held(0)
        placed.reset_peak(0)

    @property
    def held(self) -> int:
        return self._placed.held(0) - self._before

    @property
    def peak(self) -> int:
        """The most bytes held since the measurement began."""
        return self._placed.peak(0) - self._before
