"""Blocks that are being computed right now, and the requests parked until they can share them."""

from __future__ import annotations

from collections.abc import Iterable


class PendingBlocks:
    """Hash of a pending block → the request that computes it, and the requests parked for it (all by id)."""

    def __init__(self) -> None:
        self._owner: dict[bytes, int] = {}
        self._parked: dict[bytes, list[int]] = {}
        self._unparked: list[int] = []

    def add(self, hashes: Iterable[bytes], owner: int) -> None:
        """``owner`` is going to compute these; a block that is pending already keeps its owner."""
        for one in hashes:
            self._owner.setdefault(one, owner)

    def owner(self, hash: bytes) -> int | None:
        """The request that computes the block; None if it is not pending."""
        return self._owner.get(hash)

    def park(self, hash: bytes, id: int) -> None:
        """Request ``id`` waits until the block is published or its owner gives it up."""
        self._parked.setdefault(hash, []).append(id)

    def settle(self, hashes: Iterable[bytes], owner: int) -> None:
        """Those that ``owner`` computes are published or given up; requests that wait for them are unparked."""
        for one in hashes:
            if self._owner.get(one) == owner:
                del self._owner[one]
                self._unparked += self._parked.pop(one, ())

    def take_unparked(self) -> list[int]:
        """The requests unparked since the last call."""
        unparked, self._unparked = self._unparked, []
        return unparked
