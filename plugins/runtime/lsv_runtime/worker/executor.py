"""The inline executor: the engine's own process is the worker."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from lsv.config import EngineConfig, Fit
from lsv.engine.executor import ReportProgress
from lsv.plugins.catalog import Catalog
from lsv.scheduler.plan import AwaitMasks, StepPlan, StepResult
from lsv_base.errors import EngineDied
from lsv_base.processes.orders import WorkerOrder
from lsv_runtime.worker.worker import Worker

_log = logging.getLogger(__name__)


class InlineExecutor:
    """Gives each plan to the device at once and waits for a result when it is asked for."""

    def __init__(self, catalog: Catalog) -> None:
        self.depth = 1
        self._catalog = catalog
        self._worker: Worker | None = None

    def start(self, config: EngineConfig, progress: ReportProgress) -> Fit:
        """Open the device, load the model and make everything ready; raises ``StartError``."""
        self.depth = config.in_flight
        self._worker = Worker(config, self._catalog)
        return self._worker.start(progress)

    def submit(self, plan: StepPlan, masks: AwaitMasks | None = None) -> None:
        """Raises ``EngineDied``, chained to the cause, when the step as a whole fails."""
        with self._blame(f"step {plan.step} ({plan.kind}, {len(plan.rows)} rows)") as worker:
            worker.launch(plan, masks)

    def collect(self, timeout: float) -> StepResult:
        """The oldest result. ``timeout`` can't interrupt a step in the own process; the process's parent sees to it.

        Raises ``EngineDied``, chained to the cause, when the step as a whole fails.
        """
        with self._blame("the step in flight") as worker:
            return worker.finish()
        raise AssertionError("a failing step raises")

    @contextmanager
    def _blame(self, what: str) -> Iterator[Worker]:
        assert self._worker is not None, "the executor has not been started"
        try:
            yield self._worker
        except Exception as cause:
            _log.exception("%s failed", what)
            raise EngineDied(f"{what} failed: {type(cause).__name__}: {cause}; the log has the traceback") from cause

    def check(self) -> None:
        """The worker is this process, which its parent looks after."""

    def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
        """See ``Worker.control``."""
        assert self._worker is not None, "the executor has not been started"
        return [self._worker.control(order)]

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None
