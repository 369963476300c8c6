"""Engines that take as many steps as each other: over fake workers, with the pipes of a real folder."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lsv.config import ExpertOptions, Topology
from lsv.engine.engine import Engine
from lsv.engine.executor import BalanceExperts, CountExperts
from lsv.engine.messages import Submit
from lsv.engine.replicas.rhythm import Pipes, Rhythm, open_pipes
from lsv.request.params import SamplingParams
from lsv.scheduler.plan import Kind, StepPlan
from lsv.scheduler.policy import Fcfs
from lsv_base.processes.orders import WorkerOrder
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.requests import make_spec


class Executor(FakeExecutor):
    """Remembers plans."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.plans: list[StepPlan] = []
        self.orders: list[tuple[int, WorkerOrder]] = []
        """Orders, and how many plans were before each."""

    def submit(self, plan: StepPlan, *given: Any) -> None:
        self.plans.append(plan)
        super().submit(plan, *given)

    def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
        self.orders.append((len(self.plans), order))
        return super().control(order)


def has_work(engine: Engine[str]) -> bool:
    """As the loop asks, which hears of the others' steps between its own."""
    for part in engine.parts.all:
        for read in part.sockets.values():
            read()
    return engine.has_work


def meet(place: Pipes, replicas: int) -> list[Topology]:
    return [Topology(data=replicas, replica=n, expert=replicas, meeting=place.address) for n in range(replicas)]


@pytest.fixture(params=["pipes", "sockets"])
def three(request: pytest.FixtureRequest) -> Iterator[list[Rhythm]]:
    """On one machine, and on three."""
    place = Pipes(3)
    if request.param == "pipes":
        made = [open_pipes(topology) for topology in meet(place, 3)]
    else:
        ends: list[list[int]] = [[], [], []]
        for one, other in ((0, 1), (0, 2), (1, 2)):
            for number, end in zip((one, other), socket.socketpair(), strict=True):
                ends[number].append(end.detach())
        made = [Rhythm(each, each) for each in ends]
    yield made
    for rhythm in made:
        rhythm.close()
        rhythm.close()
    place.close()
    assert not Path(place.address).exists()


def test_who_hears_of_more_steps_is_behind(three: list[Rhythm]) -> None:
    first, second, _ = three
    first.take()
    first.take()
    assert not second.behind, "it has not listened"
    for rhythm in three:
        rhythm.listen()
    assert [rhythm.behind for rhythm in three] == [False, True, True]
    second.take()
    assert second.behind
    second.take()
    assert not second.behind
    second.take()
    for rhythm in three:
        rhythm.listen()
    assert [rhythm.behind for rhythm in three] == [True, False, True]


def test_nobody_waits_for_a_listener(three: list[Rhythm]) -> None:
    for _ in range(200):
        three[0].take()
    three[1].listen()
    for _ in range(200):
        assert three[1].behind
        three[1].take()
    assert not three[1].behind


def test_who_is_gone_is_not_waited_for() -> None:
    """And a count may come in parts."""
    (mine, theirs), (also, others) = socket.socketpair(), socket.socketpair()
    rhythm = Rhythm([mine.fileno(), also.fileno()], [mine.detach(), also.detach()])
    theirs.send(b"\x03\0\0")
    rhythm.listen()
    assert not rhythm.behind
    theirs.send(b"\0" * 5)
    rhythm.listen()
    assert rhythm.behind
    for _ in range(3):
        rhythm.take()
    assert not rhythm.behind
    theirs.close()
    for _ in range(2):
        rhythm.listen()
        rhythm.take()
    assert not select.select([rhythm], [], [], 0)[0], "nothing more is heard"
    others.send(struct.pack("<q", 9))
    rhythm.listen()
    assert rhythm.behind
    rhythm.close()
    others.close()


@pytest.mark.row("F-570")
@pytest.mark.parametrize("depths", [(1, 1), (2, 1), (1, 4)])
def test_an_engine_without_requests_takes_the_steps_of_the_other(depths: tuple[int, int]) -> None:
    """And where experts move, they do so before the same steps of both."""
    executors = [Executor(depth) for depth in depths]
    engines: list[Engine[str]] = []
    place = Pipes(2)
    for executor, topology in zip(executors, meet(place, 2), strict=True):
        config = engine_config(topology=topology, experts=ExpertOptions(interval=4, window=3))
        engines.append(Engine(config, executor, Fcfs(), parts=core_parts, now=FakeClock()))
        engines[-1].start(lambda stage, done, total: None)
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    engines[0].submit("a", Submit(id=0, spec=make_spec((1, 2, 3), params)))
    tokens = [0, 0]
    while any(map(has_work, engines)):
        for number, engine in enumerate(engines):
            if number == 1 and len(executors[1].plans) == 3:
                engine.submit("b", Submit(id=1, spec=make_spec((4, 5), params)))
            if has_work(engine):
                tokens[number] += sum(len(one.tokens) for updates in engine.step().values() for one in updates)
    assert tokens == [9, 9]
    steps = [len(executor.plans) for executor in executors]
    assert steps[0] == steps[1]
    empty = [plan for plan in executors[1].plans if not plan.rows]
    assert len(empty) >= 3
    assert {plan.kind for plan in empty} == {Kind.IDLE}
    assert [plan.step for plan in executors[1].plans] == list(range(steps[1]))
    assert executors[0].orders == executors[1].orders
    assert dict(executors[0].orders[:4]) == {
        1: CountExperts(), 4: BalanceExperts(), 5: CountExperts(), 8: BalanceExperts(),
    }  # fmt: skip
    for engine in engines:
        engine.close()
    place.close()
