"""Free ports for processes that agree on an address before one of them listens there."""

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

    Prefers ports below the ephemeral range. An outgoing connection could take an ephemeral port before the process
    that needs it has started, or while that process restarts.
    """
    for port in random.SystemRandom().sample(range(_LOWEST, _first_ephemeral()), _TRIES):
        if _is_free(host, port):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        found: int = probe.getsockname()[1]
        return found


def _first_ephemeral() -> int:
    """The first ephemeral port; Linux's default if the system does not report it."""
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
