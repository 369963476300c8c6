"""What a place is given to run: the engine of a replica, which joins node 0 as one of another machine does."""

from __future__ import annotations

import logging
from functools import partial

import msgspec

from lsv.config import EngineConfig
from lsv.engine.replicas.nodes.member import serve_replicas
from lsv.engine.supervision.supervisor import RestartPolicy
from lsv.settings.cluster_key import export_cluster_key
from lsv_base.errors import ErrorRecord, LsvError
from lsv_base.processes.outlet import unblock_output


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """Travels in msgpack."""

    config: EngineConfig
    """Of the replica, with node 0's address and the share of its machine."""
    key: bytes
    """The secret that the two machines know each other by."""
    log_level: str
    restarts: tuple[int, float]
    """The limit and the window of a ``RestartPolicy``."""
    drain: float
    """Seconds that requests get to end when the place is told to."""


def run(charge: bytes) -> bytes:
    """Run the engine in this process's main thread until the server has ended as it was told to, or SIGTERM has come:
    then nothing is returned. Otherwise the ``ErrorRecord`` of what the engine has ended of, in msgpack.
    """
    given = msgspec.msgpack.decode(charge, type=Charge)
    unblock_output()
    logging.basicConfig(level=given.log_level)
    export_cluster_key(given.key)  # for what engines say to each other
    restarts = partial(RestartPolicy, *given.restarts)
    try:
        serve_replicas(
            [given.config], key=given.key, log_level=given.log_level, restarts=restarts, drain=given.drain
        )  # fmt: skip
    except LsvError as error:
        return msgspec.msgpack.encode(error.record())
    return b""


def read_end(said: bytes) -> ErrorRecord | None:
    """What ``run`` has returned."""
    return msgspec.msgpack.decode(said, type=ErrorRecord) if said else None
