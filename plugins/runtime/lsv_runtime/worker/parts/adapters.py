"""Reads LoRA adapters, and lets them into the slots that steps use."""

from __future__ import annotations

from lsv.adapters.orders import DropAdapter, ReadAdapter
from lsv.scheduler.plan import StepPlan
from lsv_runtime.adapters.store import AdapterStore
from lsv_runtime.worker.load.resident import ResidentModel
from lsv_runtime.worker.parts.part import WorkerPart, WorkerPartContext


def make_adapters(context: WorkerPartContext) -> AdaptersPart | None:
    """None where adapters are not enabled."""
    return None if context.config.adapters is None else AdaptersPart()


class AdaptersPart(WorkerPart):
    """Has the store of the loaded model do what the engine says."""

    def __init__(self) -> None:
        self._store: AdapterStore | None = None
        self.orders = {
            ReadAdapter: lambda order: self.store.load(order.id, order.path, order.digest),
            DropAdapter: lambda order: self.store.drop(order.id),
        }

    @property
    def store(self) -> AdapterStore:
        assert self._store is not None, "no model is loaded"
        return self._store

    def load(self, resident: ResidentModel) -> None:
        self._store = resident.loaded.adapters

    def before(self, plan: StepPlan) -> None:
        for entering in plan.adapters:
            self.store.enter(entering.slot, entering.adapter)

    def sleep(self, level: int) -> None:
        self._store = None
