"""The handshake by which two machines prove to each other that they have the same key.

The listener sends ``GREETING`` and a nonce. The client sends its own nonce, the purpose of the connection, and an
HMAC-SHA256 over all of that. The listener answers with its own HMAC over the same data, or with zeros if the client's
HMAC is wrong. The key itself is never sent, and a recorded handshake is useless in another connection. Nothing is
encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time

GREETING = b"lsv nodes 1\n"
JOINING = 0xFFFF
"""Purpose of a connection that joins a machine. Smaller purposes are numbers of ranks or replicas."""
FETCHING = 0xFFFE
"""Purpose of a connection that fetches KV blocks from another engine."""
MEETING = 0xFFFD
"""Purpose of a connection that asks for the addresses of a group."""

_NONCE = 32
_PURPOSE = 2
_PROOF = hashlib.sha256().digest_size
_STRANGER = bytes(_PROOF)


class OtherKey(Exception):
    """The two machines have different keys."""


class OtherProtocol(Exception):
    """The other end does not speak this protocol."""


class Challenge:
    """The listener's side of one handshake: the greeting, and the check of the answer."""

    size = _NONCE + _PURPOSE + _PROOF
    """Bytes of the client's answer."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._nonce = secrets.token_bytes(_NONCE)
        self.greeting = GREETING + self._nonce

    def judge(self, answer: bytes) -> tuple[int | None, bytes]:
        """The purpose of the connection, None if its key is wrong, and the listener's reply."""
        claimed, proof = answer[: _NONCE + _PURPOSE], answer[_NONCE + _PURPOSE :]
        if not hmac.compare_digest(proof, _prove(self._key, b"node", self._nonce, claimed)):
            return None, _STRANGER
        return int.from_bytes(claimed[_NONCE:], "big"), _prove(self._key, b"engine", self._nonce, claimed)


def introduce(end: socket.socket, key: bytes, purpose: int) -> None:
    """The client's side of a handshake. Raises ``OtherKey``, ``OtherProtocol``, or ``OSError`` without an answer."""
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
    """The deadline of the whole handshake. A socket's own timeout would start again with every byte."""
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
                raise ConnectionResetError("the other end closed the connection")
            if ends is not None and time.monotonic() > ends:
                raise TimeoutError("the other end is too slow")
            found += more
    finally:
        end.settimeout(seconds)
    return found
