"""Step times of real engines, as their clients see them."""

from __future__ import annotations

import asyncio
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import accumulate, count, pairwise
from pathlib import Path

from checkpoints import SHAPES
from replicas import opened

from lsv.cli.context import CommandContext
from lsv.config import EngineConfig
from lsv.engine.replicas.router import Router
from lsv.engine.socket_client import SocketClient
from lsv.resolve import resolve
from simulate.live import random_ids, stream
from simulate.steps import StepTimes, Table

_REPEATS = 7
_ANSWER = 24
"""Tokens of which gaps are taken."""
_SEVERAL = 4
"""Sequences that show what attending to many tokens costs: one alone shows little beside the rest of a step."""
_SHORT = 8
"""Tokens of a prompt that costs next to nothing."""

_numbers = count()
"""No prompt is sent twice: it would be found in the cache."""


def measure_model(model: str, words: Sequence[str]) -> StepTimes:
    """Of an engine as ``lsv serve MODEL WORDS`` starts it; all replicas are measured at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(configure_model(model, words, Path(folder)), model))


def configure_model(model: str, words: Sequence[str], folder: Path) -> EngineConfig:
    """As ``lsv serve MODEL WORDS`` would; a shape of ``checkpoints.py`` gets random weights and lies in ``folder``."""
    if model in SHAPES:
        (folder / "config.json").write_text(json.dumps(SHAPES[model]), encoding="utf-8")
        words = [str(folder), "--load-format", "dummy", *words]
    else:
        words = [model, *words]
    context = CommandContext.open(words)
    return resolve(context.settings(words, scope="serve"), context.plugins)


async def _measure(config: EngineConfig, model: str) -> StepTimes:
    began = time.perf_counter()
    async with opened(config, [Router()]) as (client,):
        load = time.perf_counter() - began
        return await measure_engines(client.replicas, config, load, model)


async def measure_engines(clients: Sequence[SocketClient], config: EngineConfig, load: float, model: str) -> StepTimes:
    """All of ``clients`` are asked the same at the same time, as they share the machine in service, too."""
    fit = clients[0].fit
    assert fit is not None
    longest, budget = fit.max_model_len - _ANSWER, config.max_num_batched_tokens
    await _prompt(clients, min(budget, longest))
    prompts = {tokens: await _prompt(clients, tokens) for tokens in _doubled(min(budget, longest))}
    rows = {rows: await _gap(clients, rows, _SHORT) for rows in _doubled(min(config.max_num_seqs, budget))}
    far, several = longest // 2, max(rows) if max(rows) < _SEVERAL else _SEVERAL
    context = max(0.0, (await _gap(clients, several, far) - rows[several]) / (several * (far - _SHORT)))
    pair = 0.0
    if longest >= 2 * budget:
        pair = max(0.0, (await _prompt(clients, 2 * budget) - 2 * prompts[budget]) / budget**2)
    # A prompt of one token is a step of one row: what it takes longer is the way.
    latency = max(0.0, prompts[1] - rows[1])
    return StepTimes(
        never_falling(rows), never_falling({tokens: seconds - latency for tokens, seconds in prompts.items()}),
        context, pair, latency,
        max_num_seqs=config.max_num_seqs, max_num_batched_tokens=budget, kv_tokens=fit.kv_tokens,
        block_size=config.block_size, load=load,
        origin={
            "model": model, "platform": config.platform, "machine": platform.machine(), "engines": len(clients),
            "date": datetime.now(UTC).date().isoformat(),
        },
    )  # fmt: skip


def never_falling(seconds: Mapping[int, float]) -> Table:
    """More takes no less: what falls was measured too short."""
    numbers = sorted(seconds)
    return tuple(zip(numbers, accumulate((max(0.0, seconds[number]) for number in numbers), max), strict=True))


async def _prompt(clients: Sequence[SocketClient], tokens: int) -> float:
    """Seconds until the first token of a prompt that is alone."""

    async def ask(client: SocketClient) -> float:
        began = time.perf_counter()
        async with aclosing(stream(client, tuple(random_ids(f"measure {next(_numbers)}", tokens)), 1)) as answer:
            async for _ in answer:
                return time.perf_counter() - began
        raise AssertionError("an answer without tokens")

    found = [await asyncio.gather(*map(ask, clients)) for _ in range(_REPEATS)]
    return statistics.median(seconds for each in found for seconds in each)


async def _gap(clients: Sequence[SocketClient], rows: int, tokens: int) -> float:
    """Seconds between two tokens where so many sequences decode, each behind a prompt of so many tokens."""

    async def ask(client: SocketClient) -> list[float]:
        prompt = tuple(random_ids(f"measure {next(_numbers)}", tokens))
        times = [time.perf_counter() async for _ in stream(client, prompt, _ANSWER)]
        # While others begin, and once they end, fewer decode.
        middle = times[len(times) // 4 : -len(times) // 4]
        return [after - before for before, after in pairwise(middle)]

    found = await asyncio.gather(*(ask(client) for client in clients for _ in range(rows)))
    return statistics.median(gap for each in found for gap in each)


def _doubled(most: int) -> list[int]:
    """1, 2, 4 … and ``most``."""
    powers = [1 << place for place in range(most.bit_length())]
    return sorted({*powers, most})
