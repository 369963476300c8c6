"""Predicted beside measured: the same conversations, simulated and on two real engines behind the real router."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from replicas import configure, opened

from lsv.config import EngineConfig
from lsv.engine.orders.order import ResetPrefixCache
from lsv.engine.replicas.router import Router
from simulate.figures import Figures
from simulate.fleet import Shape
from simulate.live import LiveClock, LiveFleet
from simulate.measure import configure_model, measure_engines
from simulate.run import simulate
from simulate.workload import Crowd, Load

_SHOWN = ("requests_per_s", "tokens_per_s", "ttft_ms", "itl_ms", "e2e_ms")


def validate(options: argparse.Namespace) -> None:
    """Print what was predicted of two replicas, what was measured, and the ratio."""
    load = Load(
        users=options.users, first=192, said=48, answer=48, turns=4, think=options.think, spread=0.3, mixed=False
    )
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_validate(options, load, _configure(options, load, Path(folder))))


def _configure(options: argparse.Namespace, load: Load, folder: Path) -> EngineConfig:
    """Two replicas; without a model they compute nothing."""
    if options.model:
        return configure_model(options.model, ["-dp", "2", *options.options], folder)
    room = argparse.Namespace(
        document=2 * load.first, turns=load.turns, said=2 * load.said, answer=2 * load.answer, users=load.users,
        streams=load.users, simulated=True, step_ms=20.0, token_ms=0.5,
    )  # fmt: skip
    return configure(room, folder, 2)


async def _validate(options: argparse.Namespace, load: Load, config: EngineConfig) -> None:
    async with opened(config, [Router()]) as (client,):
        times = await measure_engines(client.replicas, config, 0.0, options.model)
        await client.order(ResetPrefixCache())
        fleet = LiveFleet(client)
        Crowd(LiveClock(), load, config.block_size, fleet.submit)  # type: ignore[arg-type]
        await asyncio.sleep(options.seconds)
        measured = replace(fleet.figures, seconds=options.seconds)
        await fleet.stop()
    _print(simulate(times, Shape(2), load, seconds=options.seconds, warm=0.0), measured)


def _print(predicted: Figures, measured: Figures) -> None:
    print(f"{'':16}{'predicted':>12}{'measured':>12}{'ratio':>8}")
    for name in _SHOWN:
        found, real = predicted.summary()[name], measured.summary()[name]
        print(f"{name:16}{found:12.1f}{real:12.1f}{found / real:8.2f}", flush=True)
