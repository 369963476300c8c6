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


class Challenge:
    """The listener's side: what it says first to a connection, and what it makes of the answer."""

    size = _NONCE + _PURPOSE + _PROOF
    """Bytes of an answer."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._nonce = secrets.token_bytes(_NONCE)
        self.greeting = GREETING + self._nonce

    def judge(self, answer: bytes) -> tuple[int | None, bytes]:
        """What a connection is for, None for one of another key; and the listener's last word."""
        claimed, proof = answer[: _NONCE + _PURPOSE], answer[_NONCE + _PURPOSE :]
        if not hmac.compare_digest(proof, _prove(self._key, b"node", self._nonce, claimed)):
            return None, _STRANGER
        return int.from_bytes(claimed[_NONCE:], "big"), _prove(self._key, b"engine", self._nonce, claimed)


def introduce(end: socket.socket, key: bytes, purpose: int) -> None:
    """The other side of a ``Challenge``. Raises ``OtherKey``, ``OtherProtocol``, and ``OSError`` without an answer."""
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
