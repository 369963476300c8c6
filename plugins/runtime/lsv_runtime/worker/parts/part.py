"""The seam of features in a worker, and those that plugins offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lsv.config import EngineConfig
from lsv.plugins.catalog import Catalog
from lsv.plugins.parts import load_parts
from lsv.scheduler.plan import StepPlan
from lsv_base.processes.orders import WorkerOrder
from lsv_runtime.worker.load.resident import ResidentModel

WorkerHandler = Callable[[Any], Mapping[str, float] | None]
"""Carries out an order of one type, and may answer it."""


class WorkerPartContext(NamedTuple):
    """What a part of a worker is made from."""

    config: EngineConfig
    """Settings of plugins are its ``options``."""

    rank: int
    """Of the worker, among all of its engine."""


class WorkerPart:
    """Takes part in every worker of an engine.

    Every method has a default that does nothing. All calls come from the thread that runs the steps. An error in
    ``before`` fails the engine.
    """

    orders: Mapping[type[WorkerOrder], WorkerHandler] = {}
    """The orders that it adds to the worker. Nothing is in flight when one is carried out."""

    def load(self, resident: ResidentModel) -> None:
        """The model is in memory, for the first time or again after it slept. It warms up next.

        Raises ``StartError``.
        """

    def before(self, plan: StepPlan) -> None:
        """A plan is about to be carried out."""

    def check_sleep(self) -> None:
        """Raises ``BadRequest`` if the worker can't sleep now."""

    def sleep(self, level: int) -> None:
        """The worker is about to sleep: let go of the cache, and at level 2 also of the model."""


def make_parts(catalog: Catalog, context: WorkerPartContext) -> list[WorkerPart]:
    """The parts of a worker. Raises ``PluginError``."""
    return load_parts(catalog, "worker", WorkerPart, context)


def preceding(parts: Sequence[WorkerPart]) -> tuple[WorkerPart, ...]:
    """The parts that act before a step."""
    return tuple(part for part in parts if type(part).before is not WorkerPart.before)
