"""Ports for processes that have to agree on an address before one of them listens there."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 20_000
_TRIES = 50


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is free on ``host`` now; an empty ``host`` stands for all interfaces.

    It lies below the ports that the system gives to outgoing connections, if there are free ones: such a connection
    could take the port before the process that is to listen there has started, or while it is started again.
    """
    for port in random.SystemRandom().sample(range(_LOWEST, _first_ephemeral()), _TRIES):
        if _is_free(host, port):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        found: int = probe.getsockname()[1]
        return found


def _first_ephemeral() -> int:
    """The first port of outgoing connections; with Linux's default where the system does not say."""
    first = 32_768
    with suppress(OSError, ValueError, IndexError):
        first = int(_EPHEMERAL.read_text().split()[0])
    return max(first, _LOWEST + _TRIES)


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
