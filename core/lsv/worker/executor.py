"""The inline executor: the engine's own process is the worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lsv.catalog import Catalog
from lsv.config import EngineConfig, Fit, OptionValue
from lsv.engine.executor import ReportProgress
from lsv.errors import ConfigError, EngineDied
from lsv.scheduler.plan import StepPlan, StepResult
from lsv.worker.worker import Worker

_log = logging.getLogger(__name__)


class InlineExecutor:
    """Runs each plan when its result is asked for; one plan may be in flight."""

    depth = 1

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._worker: Worker | None = None
        self._plan: StepPlan | None = None

    def start(self, config: EngineConfig, progress: ReportProgress) -> Fit:
        """Open the device, load the model and make everything ready; raises ``StartError``."""
        self._worker = Worker(config, self._catalog)
        return self._worker.start(progress)

    def submit(self, plan: StepPlan) -> None:
        assert self._plan is None, "a plan is in flight already"
        self._plan = plan

    def collect(self, timeout: float) -> StepResult:
        """Run the plan in flight; ``timeout`` can't interrupt a step in the own process.

        Raises ``EngineDied``, chained to the cause, when the step as a whole fails.
        """
        assert self._plan is not None, "no plan is in flight"
        assert self._worker is not None, "the executor has not been started"
        plan, self._plan = self._plan, None
        try:
            return self._worker.step(plan)
        except Exception as cause:
            _log.exception("step %d (%s, %d rows) failed", plan.step, plan.kind, len(plan.rows))
            raise EngineDied(
                f"step {plan.step} failed: {type(cause).__name__}: {cause}; the log has the traceback"
            ) from cause

    def control(self, order: str, arguments: Mapping[str, OptionValue]) -> None:
        """``reset`` finds nothing to forget: cached blocks are the scheduler's. Other orders are unknown."""
        if order != "reset":
            raise ConfigError(f"the inline executor does not know the order {order!r}; it knows: reset")

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = self._plan = None
