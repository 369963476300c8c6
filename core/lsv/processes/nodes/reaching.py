"""The way to another machine's door: tried until it is open, and taken again when what is behind it has ended."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from lsv.errors import EngineDied, StartError
from lsv.processes.nodes.handshake import JOINING, OtherKey, OtherProtocol, introduce

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Delay = Callable[[float], float | None]
"""(now) -> seconds to wait before the first machine is joined anew, None where it is not."""

GREETING_SECONDS = 10.0
"""What the first machine gets for a connection, and for each side's word at its beginning."""
_AGAIN_SECONDS = 0.5
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""A machine that has vanished is missed after a minute: the last of these (ms) is what Linux goes by for probes too."""


class Way(NamedTuple):
    """To node 0, and what it is told by when it can't be gone."""

    address: str
    port: int
    patience: float
    """Seconds in which somebody has to answer there."""
    options: str
    """Those that say where it is, as in "--master-addr and --master-port"."""

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


def reach(way: Way, key: bytes, purpose: int) -> socket.socket:
    """A connection to node 0 whose both ends have shown that they have the key; tried again until it is there.

    Raises ``StartError``: late, of another secret, or something else that listens there.
    """
    deadline = time.monotonic() + way.patience
    if purpose == JOINING:
        log.info("looking for node 0 at %s", way)
    while True:
        try:
            return _connect(way, key, purpose)
        except OtherKey:
            raise StartError(f"node 0 at {way} has another LSV_CLUSTER_KEY: set the same on all machines") from None
        except OtherProtocol:
            raise StartError(
                f"what answers at {way} is no lsv engine that waits for its nodes: {way.options} must be those of "
                "node 0"
            ) from None
        except OSError as cause:
            if time.monotonic() > deadline:
                raise StartError(
                    f"node 0 does not answer at {way} for {way.patience:g} s (node_timeout): {cause}; is it started, "
                    "is that its address, and does no firewall keep it from this machine?"
                ) from cause
            time.sleep(_AGAIN_SECONDS)


def keep_joining(serve: Callable[[], Result], delay: Delay) -> Result:
    """Have ``serve`` join node 0 and do what it says, until that has ended as it was told to; what it returns then.

    Raises what it has ended with, ``StartError`` where it can't be joined, ``EngineDied`` when it is gone; after the
    latter it is joined anew while ``delay`` allows, though it may then wait in vain for another machine.
    """
    has_run = False
    while True:
        try:
            return serve()
        except (EngineDied, StartError) as cause:
            has_run |= isinstance(cause, EngineDied)
            wait = delay(time.monotonic()) if has_run else None
            if wait is None:
                raise
            log.error("%s; joining again", cause.message)
            time.sleep(wait)


def prepare(end: socket.socket) -> None:
    """Settings of a connection that stays: small messages go out at once, and its end is noticed."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _connect(way: Way, key: bytes, purpose: int) -> socket.socket:
    end = socket.create_connection((way.address, way.port), GREETING_SECONDS)
    try:
        prepare(end)
        introduce(end, key, purpose)
    except BaseException:
        end.close()
        raise
    return end
