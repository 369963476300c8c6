"""Sleeping and waking up, over a fake worker: what refuses, what becomes of requests, what is forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from lsv.engine.engine import Engine
from lsv.engine.executor import ReleaseMemory, RestoreMemory
from lsv.engine.messages import Control, Controlled, Start, Submit, Update
from lsv.engine.orders.order import Order
from lsv.engine.orders.orders import Orders
from lsv.engine.orders.sleep import Sleep, WakeUp
from lsv.engine.parts.profiles import StartProfile
from lsv.engine.parts.sleep import SleepPart
from lsv.request.params import SamplingParams
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import BadRequest, Unavailable
from lsv_base.processes.orders import WorkerOrder, encode_order
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config, part_of
from lsv_testing.fakes.requests import make_spec

PROMPT = tuple(range(1, 30))


class Executor(FakeExecutor):
    """Remembers orders; ``refused`` is raised once."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[WorkerOrder] = []
        self.refused: Exception | None = None

    def control(self, order: WorkerOrder) -> None:
        super().control(order)
        refused, self.refused = self.refused, None
        if refused is not None:
            raise refused
        self.orders.append(order)


@pytest.fixture
def executor() -> Executor:
    return Executor()


def make(executor: Executor, **changes: Any) -> Engine[str]:
    config = engine_config(**{"sleep_mode": True, **changes})
    engine: Engine[str] = Engine(config, executor, Fcfs(), parts=core_parts, now=FakeClock())
    engine.start(lambda stage, done, total: None)
    return engine


def ask(id: int, **params: Any) -> Submit:
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 5, **params})
    return Submit(id=id, spec=make_spec(PROMPT, sampling, request_id=f"r{id}"))


def run(engine: Engine[str]) -> list[Update]:
    news: list[Update] = []
    while engine.has_work:
        news += engine.step().get("a", [])
    return news


def test_an_engine_that_sleeps_takes_no_requests_and_has_forgotten_prefixes(executor: Executor) -> None:
    engine = make(executor)
    engine.submit("a", ask(0))
    run(engine)
    part_of(engine, SleepPart).sleep(1)
    assert executor.orders == [ReleaseMemory(1)]
    with pytest.raises(Unavailable, match=r"sleeps \(weights, kv_cache\)"):
        engine.submit("a", ask(1))
    part_of(engine, SleepPart).wake_up()
    assert executor.orders[1:] == [RestoreMemory(("weights", "kv_cache"))]
    engine.submit("a", ask(2))
    assert next(update.start for update in run(engine)) == Start()
    engine.submit("a", ask(3))
    start = next(update.start for update in run(engine))
    assert start is not None
    assert start.cached > 0


@pytest.mark.parametrize("params", [{}, {"n": 2, "temperature": 1.0}, {"use_beam_search": True, "best_of": 2}])
def test_requests_under_way_end_with_the_reason(executor: Executor, params: dict[str, Any]) -> None:
    executor.depth = 2
    engine = make(executor)
    engine.submit("a", ask(0, max_tokens=50, **params))
    engine.submit("a", ask(1, max_tokens=50))
    engine.step()
    engine.refuse_all(Unavailable("the engine was put to sleep"))
    part_of(engine, SleepPart).sleep(1)
    errors = [update.error for update in run(engine) if update.finish is not None]
    assert {error.code for error in errors if error is not None} == {"unavailable"}
    assert len(errors) == (1 if params.get("use_beam_search") else params.get("n", 1)) + 1
    part_of(engine, SleepPart).wake_up()
    engine.submit("a", ask(2))
    assert run(engine)[-1].finish == "length"


def test_parts_wake_up_one_by_one(executor: Executor) -> None:
    engine = make(executor)
    part_of(engine, SleepPart).sleep(1)
    part_of(engine, SleepPart).wake_up(["kv_cache"])
    assert part_of(engine, SleepPart).asleep == ("weights",)
    with pytest.raises(Unavailable, match=r"\(weights\)"):
        engine.submit("a", ask(0))
    part_of(engine, SleepPart).wake_up(["kv_cache"])  # is awake
    part_of(engine, SleepPart).wake_up(["weights"])
    part_of(engine, SleepPart).wake_up()
    assert executor.orders[1:] == [RestoreMemory(("kv_cache",)), RestoreMemory(("weights",))]
    engine.submit("a", ask(0))


def test_who_sleeps_deeply_is_not_put_to_sleep_lightly(executor: Executor) -> None:
    engine = make(executor)
    for level in (1, 2, 2, 1):
        part_of(engine, SleepPart).sleep(level)
    assert executor.orders == [ReleaseMemory(1), ReleaseMemory(2)]
    with pytest.raises(BadRequest, match="weights wake up first"):
        part_of(engine, SleepPart).wake_up(["kv_cache"])


def test_an_engine_that_can_not_wake_up_sleeps_on(executor: Executor) -> None:
    engine = make(executor)
    part_of(engine, SleepPart).sleep(1)
    executor.refused = Unavailable("too little memory")
    with pytest.raises(Unavailable, match="too little"):
        part_of(engine, SleepPart).wake_up()
    assert part_of(engine, SleepPart).asleep == ("weights", "kv_cache")
    part_of(engine, SleepPart).wake_up()
    assert not part_of(engine, SleepPart).asleep


def test_refusals(executor: Executor) -> None:
    with pytest.raises(BadRequest, match="--enable-sleep-mode"):
        part_of(make(executor, sleep_mode=False), SleepPart).sleep(1)
    engine = make(executor)
    for level in (0, 3):
        with pytest.raises(BadRequest, match="level must be 1"):
            part_of(engine, SleepPart).sleep(level)
    with pytest.raises(BadRequest, match="mode must be one of abort, wait"):
        part_of(engine, SleepPart).check_allowed(1, "keep")
    with pytest.raises(BadRequest, match="there are weights and kv_cache"):
        part_of(engine, SleepPart).wake_up(["kv"])
    assert executor.orders == []


class TestOrders:
    """What clients send."""

    @pytest.fixture
    def engine(self, executor: Executor) -> Engine[str]:
        return make(executor)

    @pytest.fixture
    def announced(self) -> list[str]:
        return []

    @pytest.fixture
    def replies(self) -> list[tuple[int, Controlled]]:
        return []

    @pytest.fixture
    def orders(self, engine: Engine[str], announced: list[str], replies: list[tuple[int, Controlled]]) -> Orders:
        orders = Orders(engine, announced.append, lambda number, answer: replies.append((number, answer)))
        orders.ready = True
        return orders

    def test_sleep_that_waits_takes_no_new_requests(
        self,
        engine: Engine[str],
        orders: Orders,
        executor: Executor,
        announced: list[str],
        replies: list[tuple[int, Controlled]],
    ) -> None:
        engine.submit("a", ask(0))
        engine.step()
        orders.take(1, message(7, Sleep(2, "wait")))
        with pytest.raises(Unavailable, match="about to sleep"):
            orders.check_open()
        orders.answer_waiting()
        assert executor.orders == replies == []
        assert run(engine)[-1].finish == "length"
        orders.answer_waiting()
        assert replies == [(1, Controlled(7))]
        assert executor.orders == [ReleaseMemory(2)]
        assert announced == ["falling asleep"]
        orders.take(2, message(8, WakeUp()))
        assert replies.pop() == (2, Controlled(8))
        orders.check_open()

    def test_sleep_by_default_ends_requests(
        self, engine: Engine[str], orders: Orders, executor: Executor, replies: list[tuple[int, Controlled]]
    ) -> None:
        engine.submit("a", ask(0))
        engine.step()
        orders.take(1, message(7, Sleep()))
        assert [update.error.code for update in run(engine) if update.error is not None] == ["unavailable"]
        orders.answer_waiting()
        assert replies == [(1, Controlled(7))]
        assert executor.orders == [ReleaseMemory(1)]

    @pytest.mark.parametrize(
        ("order", "why"),
        [
            (Sleep(3), "level must be"),
            (Sleep(mode="keep"), "mode must be"),
            (WakeUp(("all",)), "there are weights and kv_cache"),
        ],
    )
    def test_what_is_refused(
        self, orders: Orders, order: Order, why: str, replies: list[tuple[int, Controlled]]
    ) -> None:
        orders.take(1, message(1, order))
        assert why in refusal(replies)
        orders.check_open()

    def test_a_loading_engine_takes_no_orders(self, orders: Orders, replies: list[tuple[int, Controlled]]) -> None:
        orders.ready = False
        for order in (Sleep(), WakeUp(), StartProfile()):
            orders.take(1, message(1, order))
            assert "loading" in refusal(replies)

    def test_profiles_wait_until_the_engine_is_awake(
        self, engine: Engine[str], orders: Orders, replies: list[tuple[int, Controlled]]
    ) -> None:
        part_of(engine, SleepPart).sleep(1)
        orders.take(1, message(1, StartProfile()))
        assert "sleeps" in refusal(replies)


def message(id: int, order: Order) -> Control:
    return Control(id, *encode_order(order))


def refusal(replies: list[tuple[int, Controlled]]) -> str:
    """Why the order that was answered last was refused."""
    _, answer = replies.pop()
    assert answer.error is not None
    return answer.error.message
