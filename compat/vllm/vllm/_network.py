"""Addresses and ids, as programs of several processes ask for them."""

from __future__ import annotations

import socket
import uuid


def get_ip() -> str:
    """The address of this machine that the default route uses; the loopback address if it has none."""
    for family, elsewhere in ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:4860:4860::8888")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((elsewhere, 80))  # sends nothing: the system only chooses the route
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def get_open_port() -> int:
    """A TCP port that was free when this was called."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def random_uuid() -> str:
    """32 hexadecimal digits."""
    return uuid.uuid4().hex
