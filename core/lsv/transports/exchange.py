"""The seam to other engines: one has what another keeps of its prompts, so that the two compute them once.

Contents have the names they have in the transport, so what comes from elsewhere is found like what was kept here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

from lsv.config import Transfers
from lsv.transports import Site


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """For which engine an exchange works."""

    site: Site
    """That of rank 0."""
    ranks: int
    """How many parts each content has."""
    transfers: Transfers
    secret: bytes
    """What engines know each other by."""


class TransferFailed(Exception):
    """What another engine keeps can't be had; says why, as in "10.0.0.1:5600 does not answer"."""


class Exchange(ABC):
    """Made in the engine's process, for a ``Seat``. Lets others have what the engine's transport keeps, where it
    ``produces``, and brings there what others keep, where it ``consumes``.
    """

    def __init__(self, seat: Seat) -> None:
        """Raises ``ConfigError`` where it can't listen."""
        self.seat = seat

    def promise(self, keys: Sequence[bytes]) -> None:
        """A request is going to compute contents: who asks for one meanwhile waits, until it is expected or withdrawn.

        Quick, like the two that follow; they are called by the engine's thread.
        """

    def withdraw(self, keys: Sequence[bytes]) -> None:
        """That request has ended: what of its promise is not expected by now does not come."""

    def revoke(self, keys: Sequence[bytes]) -> None:
        """Contents that were put, or are about to be, are wrong: nobody gets them, and those who have hear of it.

        Quick; called by the engine's thread. A content that is expected later counts again.
        """

    def follow(self, note: Callable[[Sequence[bytes]], None]) -> None:
        """Call ``note``, in any thread, with contents that came from another engine and that it has revoked since."""

    @abstractmethod
    def expect(self, key: bytes) -> None:
        """Workers are about to put a content: who asks for it meanwhile waits."""

    @abstractmethod
    def fetch(self, peer: str, keys: Sequence[bytes], until: float | None, came: Callable[[bytes], None]) -> int:
        """Bring contents, in their order, until one can't be had; returns how many bytes.

        Each is kept as it comes, and ``came`` is told of it. ``until`` is a time of ``time.monotonic``; None for what
        the other engine is still computing, or about to: that is waited for as long as it says so, and ``Transfers.
        timeout`` without a word. Called by several threads at a time. Raises ``TransferFailed``; what has come before
        that stays.
        """

    def close(self) -> None:
        """Let go of files and connections."""


def join_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    name = host.strip("[]").lower()
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """The other way round. Raises ``ValueError`` for what is none."""
    host, colon, port = address.strip().rpartition(":")
    bare = host.strip("[]")
    if not (colon and bare and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(address)
    if ":" in bare and not host.startswith("["):
        raise ValueError(address)
    return bare, int(port)
