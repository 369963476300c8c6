"""Tokenising texts of a million characters leaves cores to the engine and other clients."""

from __future__ import annotations

import asyncio
import threading

import pytest

from lsv_api import preparing
from lsv_api.preparing import LONG, PreparingPool
from lsv_base.processes.side.turns import NOBODY
from suite.waiting import until


@pytest.mark.parametrize(("cores", "most"), [(1, 1), (2, 1), (8, 2), (64, 3)])
async def test_long_jobs_leave_cores_to_the_engine(cores: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "usable_cores", lambda: cores)
    pool, go_on, began = PreparingPool(), threading.Event(), list[int]()

    def work(number: int) -> None:
        began.append(number)
        go_on.wait(20)

    jobs = [asyncio.create_task(pool.run(NOBODY, LONG, work, number)) for number in range(6)]
    await until(lambda: len(began) == most)
    assert await pool.run(NOBODY, LONG - 1, lambda: "short") == "short"
    assert len(began) == most
    go_on.set()
    await asyncio.gather(*jobs)
    assert began == list(range(6)), "in the order in which they came"
