"""The engine's table of orders: a new order is one record and one handler, and refusals leave the engine alive."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest

from lsv.engine.engine import Engine
from lsv.engine.messages import Control, Controlled, Submit
from lsv.engine.orders.order import Handler, Order
from lsv.engine.orders.orders import Orders
from lsv.engine.orders.sleep import Sleep, WakeUp
from lsv.engine.parts.sleep import SleepPart
from lsv.request.params import SamplingParams
from lsv.scheduler.policy import Fcfs
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import BadRequest, PluginError, Unavailable
from lsv_base.processes.orders import encode_order
from lsv_offline.inline_client import InlineClient
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config, part_of
from lsv_testing.fakes.requests import make_spec

Replies = list[tuple[int, Controlled]]


class Rename(Order, frozen=True):
    """An order that core does not know."""

    announces = "renaming"

    name: str


class Rest(Order, frozen=True):
    """One that waits until all requests have ended, and ends later."""

    when_idle = True


@pytest.fixture
def engine() -> Engine[None]:
    engine: Engine[None] = Engine(engine_config(sleep_mode=True), FakeExecutor(), Fcfs(), parts=core_parts)
    engine.start(lambda *_: None)
    return engine


@pytest.fixture
def announced() -> list[str]:
    return []


@pytest.fixture
def replies() -> Replies:
    return []


@pytest.fixture
def orders(engine: Engine[None], announced: list[str], replies: Replies) -> Orders:
    orders = Orders(engine, announced.append, lambda number, answer: replies.append((number, answer)))
    orders.ready = True
    return orders


def give(orders: Orders, order: Order, id: int = 1) -> None:
    orders.take(0, Control(id, *encode_order(order)))


def submit(engine: Engine[None], **params: Any) -> None:
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 3, **params})
    engine.submit(None, Submit(id=0, spec=make_spec((1, 2, 3), sampling)))


def test_a_new_order_is_a_record_and_a_handler(
    engine: Engine[None], orders: Orders, announced: list[str], replies: Replies
) -> None:
    names: list[str] = []
    engine.orders.add({Rename: Handler(lambda order: names.append(order.name))})
    give(orders, Rename("second"))
    assert names == ["second"]
    assert announced == ["renaming"]
    assert replies == [(0, Controlled(1))]


def test_its_class_says_that_a_loading_or_sleeping_engine_refuses_it(
    engine: Engine[None], orders: Orders, replies: Replies
) -> None:
    engine.orders.add({Rename: Handler(lambda order: pytest.fail("it was carried out"))})
    orders.ready = False
    give(orders, Rename("second"))
    orders.ready = True
    part_of(engine, SleepPart).sleep(1)
    give(orders, Rename("second"))
    errors = [answer.error.message for _, answer in replies if answer.error is not None]
    assert errors[0] == "the engine is loading"
    assert "the engine sleeps" in errors[1]


@pytest.mark.parametrize("error", [None, Unavailable("no room")])
def test_it_may_wait_for_requests_and_end_later(
    engine: Engine[None], orders: Orders, replies: Replies, error: Unavailable | None
) -> None:
    resting: list[Future[None]] = []

    def rest(_: Rest) -> Future[None]:
        resting.append(Future())
        return resting[0]

    engine.orders.add({Rest: Handler(rest)})
    submit(engine)
    give(orders, Rest())
    orders.answer_waiting()
    assert not resting
    while engine.has_work:
        engine.step()
    orders.answer_waiting()
    assert resting
    assert not replies
    if error is None:
        resting[0].set_result(None)
    else:
        resting[0].set_exception(error)
    assert replies == [(0, Controlled(1, None if error is None else error.record()))]


def test_the_engine_in_this_process_takes_it_by_the_same_table() -> None:
    engine: Engine[None] = Engine(engine_config(sleep_mode=True), FakeExecutor(), Fcfs(), parts=core_parts)
    fit = engine.start(lambda *_: None)
    client = InlineClient(engine, cast("Tokenizer", None), fit)
    names: list[str] = []
    with pytest.raises(BadRequest, match=r"unknown order 'rename': the engine knows reset_prefix_cache, drain, sleep"):
        client.order(Rename("second"))
    engine.orders.add({Rename: Handler(lambda order: names.append(order.name))})
    client.order(Rename("second"))
    assert names == ["second"]
    submit(engine)
    with pytest.raises(BadRequest, match="mode: 1 requests are under way: step until they end"):
        client.order(Sleep(mode="wait"))


@pytest.mark.parametrize("params", [{}, {"n": 2, "temperature": 1.0}, {"use_beam_search": True, "best_of": 2}])
@pytest.mark.parametrize("depth", [1, 2])
def test_the_engine_in_this_process_falls_asleep_at_once(depth: int, params: dict[str, Any]) -> None:
    executor = FakeExecutor()
    executor.depth = depth
    engine: Engine[None] = Engine(engine_config(sleep_mode=True), executor, Fcfs(), parts=core_parts)
    client = InlineClient(engine, cast("Tokenizer", None), engine.start(lambda *_: None))
    submit(engine, max_tokens=50, **params)
    engine.step()
    client.order(Sleep())
    assert client.asleep == ("weights", "kv_cache")
    client.order(WakeUp())
    assert not client.asleep


def test_no_two_features_have_an_order_of_one_name(engine: Engine[None]) -> None:
    with pytest.raises(PluginError, match=r"the order sleep of .* is known already"):
        engine.orders.add({Sleep: Handler(lambda order: None)})


def test_what_is_no_order_is_refused_and_the_engine_goes_on(
    engine: Engine[None], orders: Orders, replies: Replies
) -> None:
    orders.take(0, Control(1, "dance", b""))
    orders.take(0, Control(2, "sleep", encode_order(Rename("second"))[1]))
    orders.take(0, Control(3, "sleep", b"\xc1"))
    assert [answer.error.code for _, answer in replies if answer.error is not None] == ["invalid_request"] * 3
    assert all("the engine knows reset_prefix_cache" in str(answer.error) for _, answer in replies)
    orders.check_open()
    submit(engine)
    while engine.has_work:
        engine.step()
