"""Steps that a worker was given and has not finished."""

from __future__ import annotations

from collections.abc import Callable

from lsv.scheduler.plan import StepResult
from lsv_runtime.devices.device import Event
from lsv_runtime.worker.results import ResultBuilder

Fail = Callable[[ResultBuilder, Exception], None]
"""Fails the rows of a step; raises the error where that is not enough."""


class InFlight:
    """A step that was given to the device, at ``began`` seconds of ``time.perf_counter``."""

    def __init__(self, results: ResultBuilder, began: float, *, unwarmed: bool, done: Event | None, fail: Fail) -> None:
        self.began, self.unwarmed = began, unwarmed
        self._results, self._done, self._fail = results, done, fail
        self._settled = False

    def settle(self) -> None:
        """Wait for the step; from then on the host knows its tokens."""
        if self._settled:
            return
        try:
            if self._done is not None:
                self._done.synchronize()
            self._results.settle()
        except Exception as cause:
            self._fail(self._results, cause)
        if self._results.failed:
            self._results.stand_in()
        self._settled = True

    def result(self, seconds: float) -> StepResult:
        return self._results.result(seconds, unwarmed=self.unwarmed)
