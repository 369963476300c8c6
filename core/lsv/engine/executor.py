"""The seam between the engine loop and the workers that run the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from lsv.config import EngineConfig, Fit
from lsv.scheduler.plan import AwaitMasks, StepPlan, StepResult
from lsv_base.processes.orders import WorkerOrder

ReportProgress = Callable[[str, int, int], None]
"""Called with (stage, done, total) while a worker starts."""


class Reset(WorkerOrder, frozen=True):
    """Do nothing. Workers answer it after the orders before it."""


class ReleaseMemory(WorkerOrder, frozen=True):
    """Give back the memory of the KV cache and of the weights."""

    announces = "falling asleep"

    level: int
    """At 1 the host keeps the weights, at 2 nothing does."""


class RestoreMemory(WorkerOrder, frozen=True):
    """Take memory again."""

    announces = "waking up"

    parts: tuple[str, ...]
    """``weights``, ``kv_cache`` or both."""


class StartProfiler(WorkerOrder, frozen=True):
    """Record a profile."""

    announces = "profiling"


class StopProfiler(WorkerOrder, frozen=True):
    """Write the recorded profile."""

    announces = "profiling"


class CountExperts(WorkerOrder, frozen=True):
    """Count from now on which experts are chosen."""


class BalanceExperts(WorkerOrder, frozen=True):
    """Move experts so that the ranks have even loads by the counts. Workers answer as ``ExpertBalancer.balance``."""


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

    def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
        """Carry out an order on every worker while nothing is in flight. Returns the ranks' answers, in their order.

        Raises ``ConfigError`` for an unknown order, and what a worker refuses it with.
        """
        ...

    def stop(self) -> None:
        """Stop the workers and free what they hold. May be called before ``start``."""
        ...
