"""Engines on one machine: a socket that only they reach, by which files themselves are handed over.

It has no path but a name in the kernel, made of the producer's address, so containers see each other where they share a
network.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from contextlib import suppress

_CREDENTIALS = struct.Struct("3i")


def listen(address: str) -> socket.socket | None:
    """A listener beside the one at ``address`` (``join_address``); None where somebody has its name."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_name(address))
        listener.listen()
    except OSError:
        listener.close()
        return None
    return listener


def connect(address: str, seconds: float) -> socket.socket | None:
    """A connection to the engine of this user at ``address``; None where that is on another machine."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(OSError):
        end.settimeout(seconds)
        end.connect(_name(address))
        if _user_of(end) == os.geteuid():
            return end
    end.close()
    return None


def _name(address: str) -> str:
    return "\0lsv-kv-" + hashlib.sha256(address.encode()).hexdigest()[:32]


def _user_of(end: socket.socket) -> int:
    found = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1])
