"""Parts of a worker: they carry out orders, act before steps, and let go of the model when it sleeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lsv.engine.executor import ReleaseMemory, RestoreMemory
from lsv.offers import PartOffer
from lsv.scheduler.plan import Kind, StepPlan
from lsv_base.errors import BadRequest, ConfigError, PluginError
from lsv_base.processes.orders import WorkerOrder
from lsv_runtime.worker.load.resident import ResidentModel
from lsv_runtime.worker.parts.part import WorkerPart, WorkerPartContext
from lsv_runtime.worker.worker import Worker

OFFER = PartOffer("watch", worker="watch:make")


class CountSteps(WorkerOrder, frozen=True):
    """Answer how many plans have come."""


class Watch(WorkerPart):
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.life: list[str] = []
        self.plans = 0
        self.busy = False
        self.orders = {CountSteps: lambda _: {"plans": self.plans}}

    def load(self, resident: ResidentModel) -> None:
        self.life.append(f"load {resident.loaded.fit.num_blocks > 0}")

    def before(self, plan: StepPlan) -> None:
        self.plans += 1

    def check_sleep(self) -> None:
        if self.busy:
            raise BadRequest("the watch is busy")

    def sleep(self, level: int) -> None:
        self.life.append(f"sleep {level}")


class Idle(WorkerPart):
    """Fails if ``before`` is called."""

    def __getattribute__(self, name: str) -> Any:
        assert name != "before", "it has no method of its own"
        return super().__getattribute__(name)


def start(checkpoints: Callable[..., Any], make_worker: Callable[..., Worker], part: object) -> Worker:
    catalog = make_worker(checkpoints("llama"), "llama")._catalog
    catalog.offer(OFFER, lambda context: part)  # type: ignore[attr-defined]
    worker = Worker(make_worker(checkpoints("llama"), "llama")._config, catalog)
    worker.start(lambda *_: None)
    return worker


def test_a_part_takes_orders_and_hears_of_plans(checkpoints: Any, make_worker: Any) -> None:
    watch = Watch()
    worker = start(checkpoints, make_worker, watch)
    worker.step(StepPlan(step=0, kind=Kind.IDLE))
    worker.step(StepPlan(step=1, kind=Kind.IDLE))
    assert worker.control(worker.orders.read("count_steps", b"\x80")) == {"plans": 2}
    assert watch.life == ["load True"]
    worker.close()


def test_a_part_lets_go_of_a_model_that_sleeps(checkpoints: Any, make_worker: Any) -> None:
    watch = Watch()
    worker = start(checkpoints, make_worker, watch)
    for level in (1, 2):
        worker.control(ReleaseMemory(level))
        worker.control(RestoreMemory(("weights", "kv_cache")))
    assert watch.life == ["load True", "sleep 1", "load True", "sleep 2", "load True"]
    watch.busy = True
    with pytest.raises(BadRequest, match="the watch is busy"):
        worker.control(ReleaseMemory(1))
    assert worker.live.runner is not None
    worker.close()


def test_a_part_costs_nothing_where_it_does_nothing(checkpoints: Any, make_worker: Any) -> None:
    worker = start(checkpoints, make_worker, Idle())
    worker.step(StepPlan(step=0, kind=Kind.IDLE))
    with pytest.raises(ConfigError, match="unknown order 'count_steps'"):
        worker.control(CountSteps())
    worker.close()


def test_parts_see_configuration_and_rank(checkpoints: Any, make_worker: Any) -> None:
    seen: list[WorkerPartContext] = []
    worker = make_worker(checkpoints("llama"), "llama")
    worker._catalog.offer(OFFER, seen.append)
    Worker(worker._config, worker._catalog, rank=3)
    assert seen == [WorkerPartContext(worker._config, 3)]


def test_what_a_plugin_makes_must_be_a_part(checkpoints: Any, make_worker: Any) -> None:
    with pytest.raises(PluginError, match=r"part watch of plugin bare: watch:make made a int; it must derive from"):
        start(checkpoints, make_worker, 3)
