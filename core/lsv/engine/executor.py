"""The seam between the engine loop and the workers that run the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from lsv.config import EngineConfig, Fit, OptionValue
from lsv.scheduler.plan import StepPlan, StepResult

ReportProgress = Callable[[str, int, int], None]
"""Called with (stage, done, total) while a worker starts."""


class Executor(Protocol):
    """Runs plans in order.

    ``depth`` is how many may be in flight: 1 inline, 2 async, the number of stages for pipelines.
    """

    depth: int

    def start(self, config: EngineConfig, progress: ReportProgress) -> Fit:
        """Load the model and make everything ready; raises ``StartError``."""
        ...

    def submit(self, plan: StepPlan) -> None: ...

    def collect(self, timeout: float) -> StepResult:
        """The oldest result in flight; raises ``EngineDied`` when a worker is gone or hangs."""
        ...

    def control(self, order: str, arguments: Mapping[str, OptionValue]) -> None:
        """Carry out an order while nothing is in flight."""
        ...

    def stop(self) -> None: ...
