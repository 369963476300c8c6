"""How two machines show each other that they have the same secret, before anything else is said.

Who listens sends ``GREETING`` and a nonce; who has connected a nonce of its own, what the connection is for, and the
HMAC-SHA256 of all that; the listener answers with its own HMAC of the same, or with zeros for a stranger. The secret
itself is never sent, and what was recorded once is of no use in another connection. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time

GREETING = b"lsv nodes 1\n"
JOINING = 0xFFFF
"""The purpose of a connection by which a machine joins; others are the numbers of ranks, or of replicas."""
FETCHING = 0xFFFE
"""That of one by which an engine fetches what another has computed."""
MEETING = 0xFFFD
"""That of one by which who computes with others asks where these are reached."""

_NONCE = 32
_PURPOSE = 2
_PROOF = hashlib.sha256().digest_size
_STRANGER = bytes(_PROOF)


class OtherKey(Exception):
    """The two have different secrets."""


class OtherProtocol(Exception):
    """What is there is something else."""


def admit(end: socket.socket, key: bytes) -> int:
    """What whoever has connected wants, once it has shown within the socket's timeout that it has the key.

    Raises ``OtherKey`` for one that has not, ``OSError`` for one that has gone or is too slow.
    """
    ends = _deadline(end)
    mine = secrets.token_bytes(_NONCE)
    end.sendall(GREETING + mine)
    said = _read(end, _NONCE + _PURPOSE + _PROOF, ends)
    claimed, proof = said[: _NONCE + _PURPOSE], said[_NONCE + _PURPOSE :]
    if not hmac.compare_digest(proof, _prove(key, b"node", mine, claimed)):
        end.sendall(_STRANGER)
        raise OtherKey
    end.sendall(_prove(key, b"engine", mine, claimed))
    return int.from_bytes(claimed[_NONCE:], "big")


def introduce(end: socket.socket, key: bytes, purpose: int) -> None:
    """The other side of ``admit``. Raises ``OtherKey``, ``OtherProtocol``, and ``OSError`` where nobody answers."""
    ends = _deadline(end)
    if _read(end, len(GREETING), ends) != GREETING:
        raise OtherProtocol
    theirs = _read(end, _NONCE, ends)
    claimed = secrets.token_bytes(_NONCE) + purpose.to_bytes(_PURPOSE, "big")
    end.sendall(claimed + _prove(key, b"node", theirs, claimed))
    if not hmac.compare_digest(_read(end, _PROOF, ends), _prove(key, b"engine", theirs, claimed)):
        raise OtherKey


def _prove(key: bytes, side: bytes, nonce: bytes, claimed: bytes) -> bytes:
    return hmac.digest(key, side + nonce + claimed, "sha256")


def _deadline(end: socket.socket) -> float | None:
    """The timeout is for all that is said: by itself a socket has it anew for each byte that comes."""
    seconds = end.gettimeout()
    return None if seconds is None else time.monotonic() + seconds


def _read(end: socket.socket, count: int, ends: float | None) -> bytes:
    found, seconds = b"", end.gettimeout()
    try:
        while len(found) < count:
            if ends is not None:
                end.settimeout(max(1e-3, ends - time.monotonic()))
            more = end.recv(count - len(found))
            if not more:
                raise ConnectionResetError("the other end has closed the connection")
            if ends is not None and time.monotonic() > ends:
                raise TimeoutError("the other end is too slow")
            found += more
    finally:
        end.settimeout(seconds)
    return found
