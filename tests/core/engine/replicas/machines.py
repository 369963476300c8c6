"""The first machine of a server in this process, and others in processes of their own, at loopback addresses."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import msgspec

from lsv.config import EngineConfig
from lsv.engine.replicas.nodes.reception import Reception
from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.replicas.supervisors import Supervisors
from lsv.engine.socket_client import SocketClient
from lsv.engine.supervision.supervisor import RestartPolicy
from lsv_testing.fakes.text import letters
from lsv_testing.fakes.tokens import VOCABULARY
from suite.processes import children_of

KEY = "a secret of two machines"
HERE = "127.0.0.2"
NODE = """
import logging, sys, msgspec
from lsv.config import EngineConfig
from lsv.engine.replicas.nodes.member import serve_replicas
from lsv.engine.supervision.supervisor import RestartPolicy
from lsv_base.errors import LsvError
from lsv.settings.cluster_key import read_cluster_key
logging.basicConfig(level=logging.INFO)
try:
    serve_replicas(
        msgspec.json.decode(sys.argv[1], type=EngineConfig).local_replicas(), key=read_cluster_key(), log_level="INFO",
        restarts=lambda: RestartPolicy(int(sys.argv[2]), 600.0), drain=30.0,
    )
except LsvError as error:
    sys.exit(error.message)
"""


def find_port() -> int:
    """One that is free at the first machine."""
    with socket.create_server((HERE, 0)) as free:
        return int(free.getsockname()[1])


class Head(NamedTuple):
    client: ReplicaSet
    supervisors: Supervisors
    reception: Reception


@asynccontextmanager
async def head(config: EngineConfig, *, restarts: int = 1, vocabulary: int = VOCABULARY) -> AsyncIterator[Head]:
    """The first machine."""
    supervisors = Supervisors(config.replicas(), restarts=lambda: RestartPolicy(restarts, 600.0))
    supervisors.start()
    try:
        async with Reception(config, supervisors.stand_ins, KEY.encode(), supervisors.gang) as reception:
            tokenizer = letters(vocabulary)
            each = zip(config.replicas(), supervisors.addresses, strict=True)
            client = ReplicaSet([SocketClient(one, address, tokenizer) for one, address in each])
            await client.start()
            try:
                yield Head(client, supervisors, reception)
            finally:
                await client.close()
    finally:
        await asyncio.to_thread(supervisors.stop)
    assert not any(address.exists() for address in supervisors.addresses)


@contextmanager
def node(config: EngineConfig, *, restarts: int = 0, key: str = KEY, **changes: Any) -> Iterator[subprocess.Popen[str]]:
    """Another machine, with the replicas that the first has not."""
    assert config.replica_nodes is not None
    here, there = config.topology.here.stop, config.topology.data - config.topology.here.stop
    theirs = {"topology": msgspec.structs.replace(config.topology, local=(here, there)), **changes}
    mine = msgspec.structs.replace(
        config, replica_nodes=msgspec.structs.replace(config.replica_nodes, headless=True), **theirs
    )
    running = subprocess.Popen(
        [sys.executable, "-c", NODE, msgspec.json.encode(mine).decode(), str(restarts)],
        env={**os.environ, "LSV_CLUSTER_KEY": key}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


async def words(process: subprocess.Popen[str]) -> str:
    """All that it has said, once it has ended."""
    return (await asyncio.to_thread(process.communicate, timeout=30))[0]


def engine_of(process: subprocess.Popen[str]) -> int:
    """The engine that a machine has started."""
    (found,) = children_of(process.pid)
    return found
