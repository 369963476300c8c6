"""One of several API processes: ``python -m lsv_api.fleet.member LISTENER BUCKETS CHANNEL PARENT``."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lsv import plugins
from lsv.engine.client import Service
from lsv.engine.connect import EngineClient, open_client
from lsv.plugins import logs
from lsv_api.accounts.buckets import Buckets
from lsv_api.fleet.messages import Alive, Join
from lsv_api.http.context import Shared
from lsv_api.server import Server, open_server
from lsv_base.errors import LsvError
from lsv_base.processes import heap
from lsv_base.processes.lifeline import connect
from lsv_base.processes.wire import Channel, Failed

ALIVE_SECONDS = 1.0
"""From one sign of life to the next."""


def main(listener: int, buckets: int, channel: int, parent: int) -> int:
    """Serve until told to stop; the exit code."""
    heap.share_arenas()
    heap.return_large_blocks()
    lifeline: Channel[Alive | Failed, Join] = connect(channel, parent, Join)
    join = lifeline.receive()
    level = str(join.settings["log_level"]).upper()
    logs.set_up(f"%(levelname)s %(asctime)s api-{os.getpid()} %(name)s: %(message)s", level)
    try:
        asyncio.run(_serve(join, socket.socket(fileno=listener), buckets, lifeline))
    except LsvError as error:
        with suppress(OSError):
            lifeline.send(Failed(error.record()), 1.0)
        return error.exit_code
    return 0


async def _serve(join: Join, listener: socket.socket, buckets: int, lifeline: Channel[Alive | Failed, Join]) -> None:
    loaded = plugins.load(join.engines[0].config.plugins)
    clients: dict[str, EngineClient] = {}
    for engine in join.engines:
        client = open_client(engine.config, tuple(map(Path, engine.addresses)), join.settings, loaded)
        await client.start()
        if client.media is not None:
            client.media.warm()
        clients |= dict.fromkeys(engine.config.served_names, client)
    shared = Shared(Buckets.inherit(buckets), join.metrics)
    server = open_server(Service(clients), join.settings, listener=listener, shared=shared)
    beating = asyncio.create_task(_beat(lifeline, _serving(server, clients.values())))
    try:
        await server.run()
    finally:
        beating.cancel()
        for client in dict.fromkeys(clients.values()):
            await client.close()


async def _serving(server: Server, clients: Iterable[EngineClient]) -> None:
    """Return once the server listens and all its engines are ready."""
    await server.is_listening.wait()
    for client in clients:
        with suppress(LsvError):  # the server says what an engine's start failed with
            await client.ready()


async def _beat(lifeline: Channel[Alive | Failed, Join], serving: Coroutine[Any, Any, None]) -> None:
    """Show the parent that this event loop runs; at once when it serves."""
    served = asyncio.create_task(serving)
    try:
        while True:
            with suppress(OSError):
                lifeline.send(Alive(served.done()), 0.1)
            if served.done():
                await asyncio.sleep(ALIVE_SECONDS)
            else:
                await asyncio.wait([served], timeout=ALIVE_SECONDS)
    finally:
        served.cancel()


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
