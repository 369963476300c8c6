"""The interface to other engines: an engine fetches KV blocks that another engine has computed.

Contents have the same names as in the transport, so fetched contents are found like contents that were saved here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

from lsv.config import Transfers
from lsv.transports import Site


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that an exchange works for."""

    site: Site
    """The site of rank 0."""
    ranks: int
    """How many parts each content has."""
    transfers: Transfers
    secret: bytes
    """The secret that engines share."""


class TransferFailed(Exception):
    """Fetching failed; the message says why, as in "10.0.0.1:5600 does not answer"."""


class Exchange(ABC):
    """Exchanges contents with other engines. Created in the engine's process, for a ``Seat``.

    A producer offers the contents of its transport to others. A consumer fetches contents of others into its transport.
    """

    def __init__(self, seat: Seat) -> None:
        """Raises ``ConfigError`` if it can't listen."""
        self.seat = seat

    def promise(self, keys: Sequence[bytes]) -> None:
        """Announce contents that a request will compute. Engines that ask for one wait for ``expect`` or ``withdraw``.

        Quick, like the next two methods; the engine's thread calls them.
        """

    def withdraw(self, keys: Sequence[bytes]) -> None:
        """Withdraw promised contents that were not expected so far, because their request has ended."""

    def revoke(self, keys: Sequence[bytes]) -> None:
        """Revoke wrong contents: they are no longer served, and engines that fetched them are notified.

        Quick; the engine's thread calls it. A later ``expect`` makes a content valid again.
        """

    def follow(self, note: Callable[[Sequence[bytes]], None]) -> None:
        """Call ``note``, in any thread, with fetched contents that their engine has revoked since."""

    @abstractmethod
    def expect(self, key: bytes) -> None:
        """Announce a content that workers are about to put. Engines that ask for it wait."""

    @abstractmethod
    def fetch(self, peer: str, keys: Sequence[bytes], until: float | None, came: Callable[[bytes], None]) -> int:
        """Fetch contents in order until one is missing; returns the number of bytes.

        Saves each content as it arrives and then calls ``came``. ``until`` is a time of ``time.monotonic``. None is for
        contents that the other engine is computing or about to compute: waits as long as that engine reports so, or
        until it has been silent for ``Transfers.timeout``. Several threads may call it at a time. Raises
        ``TransferFailed``; contents that have arrived before stay.
        """

    def close(self) -> None:
        """Close files and connections."""


def join_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    name = host.strip("[]").lower()
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """The inverse of ``join_address``. Raises ``ValueError`` for an invalid address."""
    host, colon, port = address.strip().rpartition(":")
    bare = host.strip("[]")
    if not (colon and bare and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(address)
    if ":" in bare and not host.startswith("["):
        raise ValueError(address)
    return bare, int(port)
