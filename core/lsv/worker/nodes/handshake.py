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
"""The purpose of a connection by which a machine joins; others are the numbers of ranks."""

_NONCE = 32
_PURPOSE = 2
_PROOF = hashlib.sha256().digest_size
_STRANGER = bytes(_PROOF)


class OtherKey(Exception):
    """The two have different secrets."""


class OtherProtocol(Exception):
    """What is there is something else."""


def admit(end: socket.socket, key: bytes, seconds: float) -> int:
    """What whoever has connected wants, once it has shown within so many seconds that it has the key.

    Raises ``OtherKey`` for one that has not, ``OSError`` for one that has gone or is too slow.
    """
    ends = time.monotonic() + seconds
    mine = secrets.token_bytes(_NONCE)
    end.sendall(GREETING + mine)
    said = _read(end, _NONCE + _PURPOSE + _PROOF, ends)
    claimed, proof = said[: _NONCE + _PURPOSE], said[_NONCE + _PURPOSE :]
    if not hmac.compare_digest(proof, _prove(key, b"node", mine, claimed)):
        end.sendall(_STRANGER)
        raise OtherKey
    end.sendall(_prove(key, b"engine", mine, claimed))
    return int.from_bytes(claimed[_NONCE:], "big")


def introduce(end: socket.socket, key: bytes, purpose: int, seconds: float) -> None:
    """The other side of ``admit``. Raises ``OtherKey``, ``OtherProtocol``, and ``OSError`` where nobody answers."""
    ends = time.monotonic() + seconds
    if _read(end, len(GREETING), ends) != GREETING:
        raise OtherProtocol
    theirs = _read(end, _NONCE, ends)
    claimed = secrets.token_bytes(_NONCE) + purpose.to_bytes(_PURPOSE, "big")
    end.sendall(claimed + _prove(key, b"node", theirs, claimed))
    if not hmac.compare_digest(_read(end, _PROOF, ends), _prove(key, b"engine", theirs, claimed)):
        raise OtherKey


def _prove(key: bytes, side: bytes, nonce: bytes, claimed: bytes) -> bytes:
    return hmac.digest(key, side + nonce + claimed, "sha256")


def _read(end: socket.socket, count: int, ends: float) -> bytes:
    """Raises ``TimeoutError`` at ``ends``, however little by little it comes."""
    found = b""
    while len(found) < count:
        end.settimeout(max(1e-3, ends - time.monotonic()))
        more = end.recv(count - len(found))
        if not more:
            raise ConnectionResetError("the other end has closed the connection")
        if time.monotonic() > ends:
            raise TimeoutError("the other end is too slow")
        found += more
    return found
