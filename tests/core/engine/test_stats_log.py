"""The throughput line."""

from __future__ import annotations

import asyncio
import logging

import pytest

from lsv.engine.messages import Stats
from lsv.engine.stats_log import describe, log_stats
from suite.waiting import until


@pytest.mark.row("F-335")
def test_it_tells_rates_since_the_last_line():
    before = Stats(prompt_tokens_total=100, generation_tokens_total=10, prefix_queries_total=50, prefix_hits_total=50)
    now = Stats(
        prompt_tokens_total=300, generation_tokens_total=50, prefix_queries_total=150, prefix_hits_total=75,
        running=3, waiting=2, kv_usage=0.25, preemptions_total=1,
    )  # fmt: skip
    assert describe(before, now, 10.0) == (
        "prompt 20.0 tok/s, generation 4.0 tok/s, prefix hits 25.0%, running 3, waiting 2, "
        "KV cache 25.0%, preemptions 1"
    )


class Counted:
    """A client that counts how often its statistics are read."""

    def __init__(self, stats: Stats) -> None:
        self.now = stats
        self.reads = 0

    @property
    def stats(self) -> Stats:
        self.reads += 1
        return self.now


async def test_an_idle_engine_is_silent(caplog):
    caplog.set_level(logging.INFO)
    client = Counted(Stats())
    task = asyncio.create_task(log_stats(client, interval=0.01))
    await until(lambda: client.reads == 4)
    assert not caplog.records
    client.now = Stats(steps_total=1, generation_tokens_total=1)
    await until(lambda: client.reads == 8)
    task.cancel()
    assert len(caplog.records) == 1


async def test_rates_of_an_engine_started_again_are_not_negative(caplog):
    caplog.set_level(logging.INFO)
    client = Counted(Stats(steps_total=9, prompt_tokens_total=1000, generation_tokens_total=500))
    task = asyncio.create_task(log_stats(client, interval=0.01))
    await until(lambda: client.reads == 1)
    client.now = Stats(steps_total=2, prompt_tokens_total=10, generation_tokens_total=5)
    await until(lambda: client.reads == 4)
    task.cancel()
    (line,) = (one.getMessage() for one in caplog.records)
    assert "-" not in line
