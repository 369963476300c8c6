"""Connecting to another machine: retries until its listener is open, and joins again after its engine has ended."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from lsv.processes.nodes.handshake import JOINING, OtherKey, OtherProtocol, introduce
from lsv.settings.host_ip import read_host_ip
from lsv_base.errors import EngineDied, StartError

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Delay = Callable[[float], float | None]
"""(now) -> seconds to wait before joining node 0 again, or None to give up."""

GREETING_SECONDS = 10.0
"""Time limit for connecting to node 0, and for each message of the handshake."""
_AGAIN_SECONDS = 0.5
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""A lost machine is noticed after a minute. Linux applies TCP_USER_TIMEOUT (ms) to keep-alive probes, too."""


class Way(NamedTuple):
    """How to reach node 0, and the options that say so, for messages."""

    address: str
    port: int
    patience: float
    """Seconds after which connecting fails."""
    options: str
    """The options that give the address, such as "--master-addr and --master-port"."""

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


def reach(way: Way, key: bytes, purpose: int) -> socket.socket:
    """Connect to node 0 and authenticate, retrying until it listens.

    Raises ``StartError`` after ``way.patience``, for a different key, or if something else listens there.
    """
    deadline = time.monotonic() + way.patience
    if purpose == JOINING:
        log.info("looking for node 0 at %s", way)
    while True:
        try:
            return _connect(way, key, purpose)
        except OtherKey:
            raise StartError(f"node 0 at {way} has another LSV_CLUSTER_KEY: set the same key on all machines") from None
        except OtherProtocol:
            raise StartError(
                f"the server at {way} is not an lsv engine that waits for nodes: {way.options} must give "
                "the address of node 0"
            ) from None
        except OSError as cause:
            if time.monotonic() > deadline:
                raise StartError(
                    f"node 0 did not answer at {way} for {way.patience:g} s (node_timeout): {cause}. Check that it is "
                    "running, that the address is right, and that no firewall blocks it"
                ) from cause
            time.sleep(_AGAIN_SECONDS)


def keep_joining(serve: Callable[[], Result], delay: Delay) -> Result:
    """Run ``serve``, which joins node 0, and return its result. Run it again if node 0 is lost.

    Raises ``StartError`` if joining fails and ``EngineDied`` if node 0 is lost for good. After ``EngineDied`` it joins
    again while ``delay`` allows, although node 0 may then wait in vain for another machine.
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
    """Configure a long-lived connection: send small messages at once, and detect a lost peer."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _connect(way: Way, key: bytes, purpose: int) -> socket.socket:
    own = read_host_ip()
    end = socket.create_connection((way.address, way.port), GREETING_SECONDS, (own, 0) if own else None)
    try:
        prepare(end)
        introduce(end, key, purpose)
    except BaseException:
        end.close()
        raise
    return end
