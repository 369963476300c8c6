"""Blocks that are being computed right now, and who waits for them instead of computing them again."""

from __future__ import annotations

from collections.abc import Iterable


class Claims:
    """Hash of a block under way → the request that computes it, and the requests that wait for it (all by id)."""

    def __init__(self) -> None:
        self._owner: dict[bytes, int] = {}
        self._waiters: dict[bytes, list[int]] = {}
        self._woken: list[int] = []

    def claim(self, hashes: Iterable[bytes], owner: int) -> None:
        """``owner`` is going to compute these; what another one already computes stays the other's."""
        for one in hashes:
            self._owner.setdefault(one, owner)

    def owner(self, hash: bytes) -> int | None:
        return self._owner.get(hash)

    def wait(self, hash: bytes, waiter: int) -> None:
        """``waiter`` wants to know when the block is there, or when its owner gave up."""
        self._waiters.setdefault(hash, []).append(waiter)

    def settle(self, hashes: Iterable[bytes], owner: int) -> None:
        """The blocks are there or given up: they are nobody's any more, and their waiters wake."""
        for one in hashes:
            if self._owner.get(one) == owner:
                del self._owner[one]
                self._woken += self._waiters.pop(one, ())

    def take_woken(self) -> list[int]:
        """Who has woken since the last call."""
        woken, self._woken = self._woken, []
        return woken

    def clear(self) -> None:
        self._owner.clear()
        self._waiters.clear()
        self._woken.clear()
