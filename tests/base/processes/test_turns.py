"""Turns: the order of waiting work, cancelled work, and no state left after work has ended."""

from __future__ import annotations

import asyncio
import random

import pytest

from lsv_base.processes.side.turns import NOBODY, Owner, Turns
from lsv_testing.fakes.clock import FakeClock


class Line:
    """Work that waits for places, and the order in which it got them."""

    def __init__(self, places: int) -> None:
        self.clock = FakeClock()
        self.turns = Turns(places, self.clock)
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task] = {}

    async def ask(self, name: str, owner: Owner) -> None:
        async def wait():
            place = await self.turns.take(owner)
            self.order.append(name)
            return place

        self.tasks[name] = asyncio.create_task(wait())
        await asyncio.sleep(0)

    async def end(self, name: str, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.turns.give_back(await self.tasks[name])
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_an_account_that_comes_late_is_next():
    line = Line(1)
    for number in range(5):
        await line.ask(f"a{number}", Owner("a", request=f"a{number}"))
    await line.ask("b0", Owner("b", request="b0"))
    await line.end("a0")
    await line.ask("b1", Owner("b", request="b1"))
    for name in ("b0", "a1", "b1", "a2", "a3"):
        await line.end(name)
    assert line.order == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


async def test_an_account_that_holds_a_place_stands_behind_one_that_holds_none():
    line = Line(2)
    for number in range(4):
        await line.ask(f"a{number}", Owner("a"))
    await line.ask("b0", Owner("b"))
    await line.end("a0", 100.0)
    await line.ask("b1", Owner("b"))
    await line.end("a1")
    assert line.order == ["a0", "a1", "b0", "a2"], "each has one place then"


async def test_weights_count():
    line = Line(1)
    for number in range(9):
        await line.ask(f"a{number}", Owner("a", weight=3.0))
        await line.ask(f"b{number}", Owner("b"))
    for _ in range(8):
        await line.end(line.order[-1])
    assert 6 <= sum(name[0] == "a" for name in line.order[:8]) <= 7


async def test_requests_of_one_account_take_turns():
    line = Line(1)
    for number in range(6):
        await line.ask(f"many{number}", Owner("a", request="many"))
    await line.ask("one", Owner("a", request="one"))
    await line.end("many0")
    assert line.order == ["many0", "one"]


@pytest.mark.parametrize("granted", [False, True])
async def test_work_that_leaves_gives_its_place_to_the_next(granted: bool):
    line = Line(1)
    for name in ("first", "gone", "last"):
        await line.ask(name, NOBODY)
    if granted:
        line.turns.give_back(await line.tasks["first"])
    line.tasks["gone"].cancel()
    if not granted:
        line.turns.give_back(await line.tasks["first"])
    await asyncio.wait_for(line.tasks["last"], 1)
    assert line.order == ["first", "last"]
    await line.end("last")
    assert (line.turns._free, line.turns._tenants) == (1, {})


@pytest.mark.machine
async def test_any_history_leaves_all_places_free():
    rng = random.Random(0)
    for _ in range(100):
        line, places = Line(rng.randint(1, 3)), {}
        for step in range(60):
            name = f"{step}"
            await line.ask(name, Owner(rng.choice("abc"), rng.choice([0.5, 1.0]), rng.choice("xy")))
            places[name] = line.tasks[name]
            for other, task in tuple(places.items()):
                if rng.random() < 0.2:
                    if task.done() and not task.cancelled():
                        await line.end(other)
                    else:
                        task.cancel()
                    del places[other]
        while places:
            await asyncio.sleep(0)
            for other, task in tuple(places.items()):
                if task.done():
                    await line.end(other)
                    del places[other]
        await asyncio.sleep(0)
        assert not line.turns._tenants
        assert line.turns.waiting("a") == 0
