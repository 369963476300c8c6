"""When experts are counted and moved, over a fake worker: the rhythm of an engine's orders, and what it tells."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lsv.config import ExpertOptions, Topology
from lsv.engine.engine import Engine
from lsv.engine.executor import BalanceExperts, CountExperts
from lsv.engine.messages import ExpertCounts, Submit
from lsv.request.params import SamplingParams
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import EngineDied
from lsv_base.processes.orders import WorkerOrder
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.requests import make_spec

ANSWER = {"mean": 60.0, "most": 100.0, "left": 75.0, "moved": 2.0}


class Executor(FakeExecutor):
    """Two stages of two ranks: remembers orders with the steps that were submitted before each."""

    def __init__(self, answer: Mapping[str, float] = ANSWER) -> None:
        super().__init__()
        self.orders: list[tuple[WorkerOrder, int]] = []
        self.steps, self.answer = 0, answer

    def submit(self, *given: Any) -> None:
        super().submit(*given)
        self.steps += 1

    def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
        super().control(order)
        self.orders.append((order, self.steps))
        return [self.answer] * 4 if order == BalanceExperts() else [{}] * 4


def run(executor: Executor, tokens: int, experts: ExpertOptions | None, **changes: Any) -> Engine[str]:
    config = engine_config(topology=Topology(tensor=2, pipeline=2, expert=2), experts=experts, **changes)
    engine: Engine[str] = Engine(config, executor, Fcfs(), parts=core_parts, now=FakeClock())
    engine.start(lambda stage, done, total: None)
    spec = make_spec(tuple(range(1, 9)), SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))
    engine.submit("a", Submit(id=0, spec=spec))
    said = 0
    while engine.has_work:
        said += sum(len(update.tokens) for update in engine.step().get("a", []))
    assert said == tokens, "an order loses no token"
    return engine


@pytest.mark.parametrize("depth", [1, 2])
def test_the_last_steps_of_an_interval_are_counted(depth: int) -> None:
    executor = Executor()
    engine = run(executor, 25, ExpertOptions(interval=10, window=4), in_flight=depth)
    orders, steps = zip(*executor.orders, strict=True)
    assert orders[:4] == (CountExperts(), BalanceExperts()) * 2
    assert [step - depth < 1 + due <= step + 1 for step, due in zip(steps, (6, 10, 16, 20), strict=False)]
    assert engine.stats.experts is not None
    assert engine.stats.experts.balanced_total == orders.count(BalanceExperts())


def test_where_all_steps_count_none_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    executor = Executor()
    with caplog.at_level(logging.INFO):
        engine = run(executor, 9, ExpertOptions(interval=4, window=4))
    assert executor.orders[:3] == [(CountExperts(), 0), (BalanceExperts(), 4), (CountExperts(), 4)]
    told = ExpertCounts(measured=0.6, expected=0.8, moved_total=8, balanced_total=2)
    assert engine.stats.experts == told, "each of two stages has moved two experts, twice"
    assert "60.0 % of the fullest rank's; with the 4 experts" in caplog.text


def test_what_was_not_measured_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    executor = Executor(dict.fromkeys(ANSWER, 0.0))
    with caplog.at_level(logging.INFO):
        engine = run(executor, 9, ExpertOptions(interval=4, window=4))
    assert engine.stats.experts == ExpertCounts()
    assert "fullest rank" not in caplog.text


@pytest.mark.parametrize("experts", [None, ExpertOptions(map=((0, 1),))])
def test_experts_that_stay_are_never_counted(experts: ExpertOptions | None) -> None:
    executor = Executor()
    engine = run(executor, 9, experts)
    assert executor.orders == []
    assert engine.stats.experts is None


def test_a_rank_that_dies_while_experts_move_ends_the_engine() -> None:
    class Dying(Executor):
        def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
            if order == BalanceExperts():
                raise EngineDied("rank 1 is gone")
            return super().control(order)

    with pytest.raises(EngineDied, match="rank 1 is gone"):
        run(Dying(), 9, ExpertOptions(interval=4, window=4))
