"""The seam between the engine loop and the workers that run the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from lsv.config import EngineConfig, Fit, OptionValue
from lsv.scheduler.plan import AwaitMasks, StepPlan, StepResult

ReportProgress = Callable[[str, int, int], None]
"""Called with (stage, done, total) while a worker starts."""


class Executor(Protocol):
    """Runs plans in order."""

    depth: int
    """How many plans may be in flight: 1 inline, 2 async, the number of stages for pipelines."""

    def start(self, config: EngineConfig, progress: ReportProgress) -> Fit:
        """Load the model and warm it up; raises ``StartError``."""
        ...

    def submit(self, plan: StepPlan, masks: AwaitMasks | None = None) -> None:
        """Start a step; returns before it has ended where ``depth`` is more than 1.

        ``masks`` are given for a plan that is ``masked``: they are to be waited for once, and only before sampling.
        """
        ...

    def collect(self, timeout: float) -> StepResult:
        """The oldest result in flight; raises ``EngineDied`` when a worker is gone or hangs."""
        ...

    def check(self) -> None:
        """Look after the workers while nothing is in flight; called about once a second.

        Raises ``EngineDied`` when one is gone or hangs.
        """
        ...

    def control(self, order: str, arguments: Mapping[str, OptionValue]) -> Sequence[Mapping[str, float]]:
        """Carry out an order on every worker while nothing is in flight. What the ranks answer, in their order.

        ``load_adapter`` and ``drop_adapter`` are such orders, ``sleep`` and ``wake_up``, and ``reset``, which needs
        nothing of workers. Raises ``ConfigError`` for an unknown order, and what a worker refuses it with.
        """
        ...

    def stop(self) -> None:
        """Stop the workers and free what they hold. May be called before ``start``."""
        ...
