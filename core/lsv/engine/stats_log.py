"""The line about throughput in an engine's log, every few seconds while it is busy."""

from __future__ import annotations

import asyncio
import logging
import time

from lsv.engine.client import Client
from lsv.engine.messages import Stats

log = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two lines."""


async def log_stats(client: Client, interval: float = INTERVAL, *, name: str = "") -> None:
    """Log what has changed since the last line, until cancelled; an idle engine is silent. ``name`` begins lines."""
    before, began = client.stats, time.monotonic()
    while True:
        await asyncio.sleep(interval)
        now, ended = client.stats, time.monotonic()
        if now.steps_total < before.steps_total:
            before = Stats()  # the engine has been started again
        if now.steps_total != before.steps_total:
            log.info("%s%s", name, describe(before, now, ended - began))
        before, began = now, ended


def describe_state(stats: Stats) -> str:
    """One line about an engine as it is."""
    return (
        f"running {stats.running}, waiting {stats.waiting}, KV cache {stats.kv_usage:.1%}, "
        f"preemptions {stats.preemptions_total}"
    )


def describe(before: Stats, now: Stats, seconds: float) -> str:
    """One line about the time between two states; preemptions are counted from the start."""
    prompt = (now.prompt_tokens_total - before.prompt_tokens_total) / seconds
    generation = (now.generation_tokens_total - before.generation_tokens_total) / seconds
    queries = now.prefix_queries_total - before.prefix_queries_total
    hits = now.prefix_hits_total - before.prefix_hits_total
    return (
        f"prompt {prompt:.1f} tok/s, generation {generation:.1f} tok/s, "
        f"prefix hits {hits / queries if queries else 0:.1%}, {describe_state(now)}"
    )
