"""Preloads contents that arrive in lower tiers for waiting requests, a few in each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from lsv.kv.blocks import BlockPool
from lsv.kv.tiers.records import Load
from lsv.kv.tiers.tiers import Tiers

_MOST = 1 << 16


class Arrivals:
    """Waiting requests find these blocks on the device; blocks not loaded in time stay in the lower tier.

    A content belongs to no request until its plan has settled. Then it is cached, and evicted like any other.
    """

    def __init__(self, pool: BlockPool, widths: Mapping[bytes, int], tiers: Tiers) -> None:
        """``widths`` are the widths of bundles, by the prefix of keys."""
        self._pool, self._widths, self._tiers = pool, widths, tiers
        self._prefix = len(next(iter(widths)))
        self._queue: deque[bytes] = deque(maxlen=_MOST)
        self._loading: dict[bytes, int] = {}
        self._revoked: set[bytes] = set()

    @property
    def blocks(self) -> Iterable[int]:
        """The first block of each bundle that is being filled."""
        return self._loading.values()

    def note(self, key: bytes) -> None:
        """Record a content that has arrived. May be called by any thread."""
        self._queue.append(key)

    def take(self, most: int, spare: int) -> list[Load]:
        """Loads for the plan being built: at most ``most`` contents, into ``spare`` blocks."""
        loads: list[Load] = []
        while self._queue and len(loads) < most:
            key = self._queue.popleft()
            if key in self._loading or self._pool.find(key) is not None or not self._tiers.has(key):
                continue
            width = self._widths[key[: self._prefix]]
            if width > spare:
                self._queue.clear()  # loaded blocks would only be evicted again
                break
            spare -= width
            blocks = self._pool.take(1, width)
            self._loading[key] = blocks[0]
            loads.append(self._tiers.load(key, blocks))
        return loads

    def revoke(self, keys: Collection[bytes]) -> None:
        """Do not publish these contents once they are loaded."""
        self._revoked.update(key for key in keys if key in self._loading)

    def settle(self, load: Load, *, there: bool) -> None:
        """Finish a load that has succeeded (``there``) or failed."""
        block = self._loading.pop(load.key)
        if load.key in self._revoked:
            self._revoked.discard(load.key)
        elif there:
            self._pool.publish(block, load.key)
        else:
            self._tiers.lose(load.key)
        self._pool.unref(block)
