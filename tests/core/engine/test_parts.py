"""Parts of the engine: they hold requests back, refuse them, act between steps, carry out orders, count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import cast

import pytest

from lsv.config import Fit
from lsv.engine.engine import Engine
from lsv.engine.messages import Submit, Update
from lsv.engine.orders.order import Handler, Order
from lsv.engine.parts import Parts
from lsv.engine.parts.made import make_parts
from lsv.engine.parts.part import Host, Part, overriding
from lsv.offers import PartOffer
from lsv.plugins.catalog import Catalog
from lsv.request.group import RequestGroup
from lsv.request.params import SamplingParams
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import BadRequest, LsvError, PluginError, RequestFailed, Unavailable
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.requests import make_spec


class OpenGate(Order, frozen=True):
    """Let all requests through that wait now."""


class Gate(Part):
    """Lets a request through when it is told to."""

    name = "gate"

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.leaving: list[tuple[int, LsvError | None]] = []
        self.closed: list[int] = []
        self.steps: list[int] = []
        self.life: list[str] = []
        self.orders = {OpenGate: Handler(self.let_all_through)}

    def start(self, fit: Fit) -> None:
        self.life.append(f"started over {fit.num_blocks > 0}")

    def open(self, group: RequestGroup) -> bool:
        if len(group.spec.prompt.ids) == 1:
            raise BadRequest("one token is too few for the gate: send two")
        self.waiting.append(group.id)
        return True

    def ready(self) -> Iterable[tuple[int, LsvError | None]]:
        leaving, self.leaving = self.leaving, []
        return leaving

    def let_all_through(self, _: Order) -> Future[None] | None:
        self.leaving += [(group, None) for group in self.waiting]
        return None

    def before_step(self, step: int) -> None:
        self.steps.append(step)

    def close(self, group: int) -> None:
        self.closed.append(group)

    def counters(self) -> Mapping[str, float]:
        return {"waited": len(self.waiting)}

    def stop(self) -> None:
        self.life.append("stopped")


class Idle(Part):
    """Does nothing. Every method fails, so that a call would be seen."""

    name = "idle"

    def __getattribute__(self, name: str) -> object:
        if name in ("open", "ready", "before_step", "close", "counters", "busy"):
            raise AssertionError(f"{name} is asked for, and the class does not override it")
        return super().__getattribute__(name)


def make(*parts: Part) -> Engine[str]:
    engine: Engine[str] = Engine(
        engine_config(), FakeExecutor(), Fcfs(), parts=lambda host: [*core_parts(host), *parts]
    )
    engine.start(lambda *_: None)
    return engine


def ask(id: int, prompt: tuple[int, ...] = (1, 2, 3)) -> Submit:
    return Submit(id=id, spec=make_spec(prompt, SamplingParams(temperature=0.0, max_tokens=2), request_id=f"r{id}"))


def step(engine: Engine[str], times: int = 6) -> list[Update]:
    return [update for _ in range(times) for update in engine.step().get("a", [])]


def test_a_request_waits_until_the_part_lets_it_through() -> None:
    gate = Gate()
    engine = make(gate)
    engine.submit("a", ask(0))
    assert step(engine) == []
    assert engine.has_work
    gate.let_all_through(OpenGate())
    assert [token for update in step(engine) for token in update.tokens]
    assert gate.closed == gate.waiting
    assert not engine.has_work


def test_others_are_served_while_one_waits() -> None:
    gate = Gate()
    engine = make(gate)
    for id in range(2):
        engine.submit("a", ask(id))
    gate.leaving.append((gate.waiting[1], None))
    assert {update.id for update in step(engine)} == {1}


def test_a_part_refuses_a_request_at_once_or_later() -> None:
    gate = Gate()
    engine = make(gate)
    with pytest.raises(BadRequest, match="one token is too few for the gate: send two"):
        engine.submit("a", ask(0, (1,)))
    assert len(gate.closed) == 1
    engine.submit("a", ask(1))
    gate.leaving.append((gate.waiting[0], Unavailable("the gate stays shut")))
    (update,) = step(engine)
    assert update.error is not None
    assert update.error.message == "the gate stays shut"
    assert len(gate.closed) == 2


def ask_for_beams(id: int) -> Submit:
    params = SamplingParams(use_beam_search=True, n=2, best_of=2, max_tokens=2, logprobs=0)
    return Submit(id=id, spec=make_spec((1, 2, 3), params, request_id=f"r{id}"))


def test_a_beam_search_waits_like_others() -> None:
    gate = Gate()
    engine = make(gate)
    engine.submit("a", ask_for_beams(0))
    assert step(engine) == []
    gate.let_all_through(OpenGate())
    assert {update.index for update in step(engine) if update.finish} == {0, 1}
    assert gate.closed == gate.waiting


def test_a_beam_search_that_waits_may_be_refused() -> None:
    gate = Gate()
    engine = make(gate)
    engine.submit("a", ask_for_beams(0))
    gate.leaving.append((gate.waiting[0], Unavailable("the gate stays shut")))
    assert {update.error.message for update in step(engine) if update.error} == {"the gate stays shut"}
    assert not engine.has_work


def test_an_aborted_request_may_be_let_through() -> None:
    gate = Gate()
    engine = make(gate)
    engine.submit("a", ask(0))
    engine.abort("a", (0,))
    gate.leaving += [(gate.waiting[0], None), (gate.waiting[0], Unavailable("too late"))]
    assert step(engine) == []


def test_a_part_brings_orders_and_counts_and_hears_of_steps() -> None:
    gate = Gate()
    engine = make(gate)
    engine.submit("a", ask(0))
    order = engine.orders.read("open_gate", b"\x80")
    engine.orders.find(order).carry_out(order)
    assert step(engine)
    assert engine.stats.parts == {"gate_waited": 1}
    assert gate.steps == list(range(len(gate.steps)))
    assert len(gate.steps) >= 2
    engine.close()
    assert gate.life == ["started over True", "stopped"]


def test_a_part_costs_nothing_where_it_does_nothing() -> None:
    engine = make(Idle())
    engine.submit("a", ask(0))
    assert step(engine)
    assert engine.stats.parts == {}
    assert overriding([Idle(), Gate()], "ready")[0].name == "gate"


def test_parts_get_what_they_need_of_the_engine() -> None:
    seen: list[Host] = []

    def make(host: Host) -> list[Part]:
        seen.append(host)
        return []

    clock = FakeClock()
    engine: Engine[str] = Engine(engine_config(), FakeExecutor(), Fcfs(), parts=make, now=clock)
    assert seen == [engine]
    assert engine.now is clock


def test_two_parts_of_one_name_are_refused() -> None:
    with pytest.raises(PluginError, match="two parts of the engine are called gate: leave one out with --no-plugin"):
        Parts((Gate(), Gate()))


def test_an_order_that_is_known_is_refused() -> None:
    class Other(Gate):
        name = "other"

    with pytest.raises(PluginError, match=r"the order open_gate of .* is known already: give it another name"):
        make(Gate(), Other())


def test_a_part_that_fails_on_a_request_fails_it_alone() -> None:
    class Broken(Part):
        name = "broken"

        def open(self, group: RequestGroup) -> bool:
            return {}[group.spec.prompt.ids[0]]

    engine = make(Broken())
    with pytest.raises(RequestFailed, match=r"the part broken failed: KeyError: 1"):
        engine.submit("a", ask(0))
    assert not engine.has_work


def test_what_a_plugin_makes_must_be_a_part() -> None:
    class Offers:
        def offers(self, kind: object) -> list[PartOffer]:
            return [PartOffer("odd", "odd:make")]

        def load(self, offer: PartOffer, half: str) -> object:
            return lambda context: 3

        def provider(self, offer: PartOffer) -> str:
            return "strange"

    with pytest.raises(
        PluginError, match=r"part odd of plugin strange: odd:make made a int; it must derive from .*Part"
    ):
        make_parts(cast(Catalog, Offers()), Engine(engine_config(), FakeExecutor(), Fcfs()))
