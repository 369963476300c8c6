"""Makes an executor misbehave at chosen steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.engine.executor import Executor, ReportProgress
from lsv.scheduler.plan import AwaitMasks, StepPlan, StepResult
from lsv_base.errors import EngineDied
from lsv_base.processes.orders import WorkerOrder


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong, by step number.

    ``delay``: seconds a result comes late · ``drop``: steps whose result never comes · ``die``: steps in which the
    worker dies · ``fail``: rows that fail, with the reason.
    """

    delay: Mapping[int, float] = {}
    drop: frozenset[int] = frozenset()
    die: frozenset[int] = frozenset()
    fail: Mapping[int, Mapping[int, str]] = {}


class FaultInjector:
    """An ``Executor`` around another that adds ``faults``. ``sleep`` is a fake clock's ``advance`` in fast tests."""

    def __init__(self, executor: Executor, faults: Faults, sleep: Callable[[float], None] = time.sleep) -> None:
        self.depth = executor.depth
        self._executor = executor
        self._faults = faults
        self._sleep = sleep
        self._steps: deque[int] = deque()

    def start(self, config: EngineConfig, progress: ReportProgress) -> Fit:
        return self._executor.start(config, progress)

    def submit(self, plan: StepPlan, masks: AwaitMasks | None = None) -> None:
        self._steps.append(plan.step)
        self._executor.submit(plan, masks)

    def collect(self, timeout: float) -> StepResult:
        """The oldest result, with its faults. Raises ``EngineDied`` for a step that dies or takes too long."""
        step, faults = self._steps.popleft(), self._faults
        if step in faults.die:
            raise EngineDied(f"the worker died in step {step}")
        delay = float("inf") if step in faults.drop else faults.delay.get(step, 0.0)
        self._sleep(min(delay, timeout))
        if delay > timeout:
            raise EngineDied(f"step {step} gave no result within {timeout:g} s")
        return _fail_rows(self._executor.collect(timeout), faults.fail.get(step, {}))

    def check(self) -> None:
        self._executor.check()

    def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
        return self._executor.control(order)

    def stop(self) -> None:
        self._executor.stop()


def _fail_rows(result: StepResult, failed: Mapping[int, str]) -> StepResult:
    tokens = tuple(() if row in failed else ids for row, ids in enumerate(result.tokens))
    return msgspec.structs.replace(result, tokens=tokens, failed={**result.failed, **failed})
