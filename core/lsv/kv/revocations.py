"""Revokes cached contents that turned out to be wrong, wherever copies of them are."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import chain, product

from lsv.kv.blocks import BlockPool
from lsv.kv.finder import PrefixFinder
from lsv.kv.table import Table
from lsv.kv.tiers.arrivals import Arrivals
from lsv.kv.tiers.tiers import Tiers


class Revocations:
    """Revokes contents. Requests that use such a block go on, because their own rows are checked.

    Revoking too many contents costs time, because they are computed again. Revoking too few fails requests.
    """

    def __init__(self, pool: BlockPool, finder: PrefixFinder, arrivals: Arrivals | None, tiers: Tiers | None) -> None:
        self._pool, self._finder = pool, finder
        self._arrivals, self._tiers = arrivals, tiers
        self.noted: deque[Sequence[bytes]] = deque()
        """Contents that other engines have revoked since the last plan."""

    def revoke_table(self, table: Table) -> None:
        """Revoke every block that a failed request read or wrote, so that no other request finds it."""
        finder = self._finder
        names = chain(product(finder.prefixes, table.hashes), product(finder.cross_prefixes, table.cross_hashes))
        self.revoke({prefix + name for prefix, name in names})

    def revoke(self, keys: Collection[bytes]) -> None:
        """Forget contents on the device, in lower tiers, and in engines that fetched them."""
        for key in keys:
            self._pool.forget(key)
        if self._arrivals is not None:
            self._arrivals.revoke(keys)
        if self._tiers is not None:
            self._tiers.revoke(keys)

    def note(self, keys: Sequence[bytes]) -> None:
        """Record contents that the engine they came from has revoked. May be called by any thread."""
        self.noted.append(keys)

    def take_noted(self) -> None:
        """Revoke the recorded contents. Called before each plan."""
        while self.noted:
            self.revoke(self.noted.popleft())
