"""Accounts take turns in side processes and threads, so that a flood of one account delays no other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from lsv_api.preparing import LONG, SHORT, PreparingPool
from lsv_api.request_templates import RequestTemplates
from lsv_base.errors import Overloaded
from lsv_base.processes.confinement.probe import Begin, Tried, Try
from lsv_base.processes.confinement.terms import Terms
from lsv_base.processes.side.pool import SidePool
from lsv_base.processes.side.process import Kind
from lsv_base.processes.side.turns import Owner

SLOW = "{% for a in range(300) %}{% for b in range(1000) %}{% endfor %}{% endfor %}"
FLOOD = 24


@pytest.fixture
async def templates() -> AsyncIterator[RequestTemplates]:
    found = RequestTemplates(seconds=20, memory=128 << 20)
    yield found
    found.close()


async def render(templates: RequestTemplates, template: str, owner: Owner) -> float:
    """Seconds until the template is rendered."""
    began = time.monotonic()
    await templates.render(
        template, [{"role": "user", "content": "Hi"}], special_tokens={}, add_generation_prompt=False, documents=None,
        kwargs={}, owner=owner,
    )  # fmt: skip
    return time.monotonic() - began


@pytest.mark.parametrize("other", [Owner("b"), Owner("a", request="other")], ids=["account", "request"])
async def test_a_flood_does_not_delay_another_account(templates: RequestTemplates, other: Owner):
    await render(templates, "{{ 1 }}", Owner("a"))
    flood = [asyncio.create_task(render(templates, SLOW, Owner("a", request="flood"))) for _ in range(FLOOD)]
    await asyncio.sleep(0.05)
    await render(templates, "{{ 1 }}", other)
    left = sum(not task.done() for task in flood)
    await asyncio.gather(*flood)
    assert left >= FLOOD - 4, "two are under way, and then it is the other's turn"


async def test_the_line_of_one_account_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lsv_base.processes.side.pool._LINE", 2)
    kind = Kind("tries", "lsv_base.processes.confinement.probe", Tried, Terms(memory=128 << 20, seconds=20))
    pool: SidePool[Begin | Try, Tried] = SidePool(kind, Begin(), seconds=60, size=1)
    asked = [asyncio.create_task(pool.ask(Try("thread"), Owner("a"))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await pool.ask(Try("thread"), Owner("a"))
    assert (await pool.ask(Try("thread"), Owner("b"))).outcome == "done"
    await asyncio.gather(*asked)
    pool.close()


async def test_work_with_many_replies_leaves_a_process_to_short_work():
    kind = Kind("tries", "lsv_base.processes.confinement.probe", Tried, Terms(memory=128 << 20, seconds=20))
    pool: SidePool[Begin | Try, Tried] = SidePool(kind, Begin(), seconds=60, size=2)

    async def listen() -> None:
        async for _ in pool.ask_all(Try("thread"), lambda reply: False, Owner("a")):
            pass

    long = [asyncio.create_task(listen()) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert (await asyncio.wait_for(pool.ask(Try("thread"), Owner("a")), 30)).outcome == "done"
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)
    pool.close()


@pytest.mark.parametrize("size", [SHORT, LONG])
async def test_tokenising_takes_turns(size: int):
    pool, go_on, order = PreparingPool(2), threading.Event(), []

    def work(name: str) -> None:
        go_on.wait(10)
        order.append(name)

    flood = [asyncio.create_task(pool.run(Owner("a"), size, work, "a")) for _ in range(20)]
    await asyncio.sleep(0)
    other = asyncio.create_task(pool.run(Owner("b"), size, work, "b"))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(other, *flood)
    assert order.index("b") <= 4
