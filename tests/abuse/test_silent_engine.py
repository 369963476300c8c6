"""An engine hangs. Load balancers notice within seconds, long before it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsv.engine.client import EngineStatus
from lsv.engine.replicas.health import summarise
from lsv.engine.supervision.silence import Silence
from suite.server import Server
from suite.waiting import until, wait_until

BEAT = 0.05


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path / "server.log", "lsv-demo")
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@pytest.mark.skipif("LSV_PLATFORM" in os.environ, reason="engines send heartbeats on every platform")
def test_a_stopped_engine_is_not_ready_within_seconds(server: Server) -> None:
    engine = server.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        wait_until(lambda: server.get("/ready")[0] == 503)
        assert time.monotonic() - stopped < 8, "three heartbeats are three seconds"
        health = json.loads(server.get("/health")[1])
        assert health["status"] == "silent"
        assert health["models"][0]["silent"] >= 3
        assert server.get("/live")[0] == 200
    finally:
        os.kill(engine, signal.SIGCONT)
    wait_until(lambda: server.get("/ready")[0] == 200)
    assert json.loads(server.get("/health")[1])["models"][0]["silent"] == 0


async def test_silence_counts_from_three_heartbeats_on() -> None:
    silence = Silence(60.0, BEAT)
    judging = asyncio.create_task(silence.wait_for_hang())
    began = time.monotonic()
    while time.monotonic() < began + 6 * BEAT:
        silence.end()
        await asyncio.sleep(BEAT)
        assert not silence.missing
    await until(lambda: silence.missing)
    assert silence.missing > 3 * BEAT
    silence.end()
    assert not silence.missing
    judging.cancel()


async def test_an_announced_task_may_be_silent() -> None:
    silence = Silence(60.0, BEAT)
    judging = asyncio.create_task(silence.wait_for_hang())
    silence.end(60.0, works=True)
    await asyncio.sleep(8 * BEAT)
    assert not silence.missing
    silence.end(60.0, works=False)
    await until(lambda: silence.missing)
    judging.cancel()


async def test_a_blocked_client_blames_no_engine() -> None:
    """Heartbeats that have arrived are read before the engine counts as silent."""
    silence, loop = Silence(60.0, BEAT), asyncio.get_running_loop()
    judging = asyncio.create_task(silence.wait_for_hang())
    await asyncio.sleep(0)
    time.sleep(10 * BEAT)  # blocks the event loop
    loop.call_later(0, silence.end)
    for _ in range(10):
        await asyncio.sleep(0)
        assert not silence.missing
    judging.cancel()


def test_one_responsive_replica_is_enough() -> None:
    ready, silent = EngineStatus(state="ready"), EngineStatus(state="ready", silent=4.0)
    assert summarise([silent, ready], complete=True).silent == 0
    assert summarise([silent, silent], complete=True).silent == 4.0
