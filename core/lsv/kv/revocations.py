"""Takes names away from contents that turned out to be wrong, wherever these are kept."""

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
    """Requests that use such a block go on: their own rows are checked.

    A name that is taken away too many costs time, as its content is computed again. One too few fails requests.
    """

    def __init__(self, pool: BlockPool, finder: PrefixFinder, arrivals: Arrivals | None, tiers: Tiers | None) -> None:
        self._pool, self._finder = pool, finder
        self._arrivals, self._tiers = arrivals, tiers
        self.noted: deque[Sequence[bytes]] = deque()
        """Contents that other engines have revoked, until the next plan is made."""

    def revoke_table(self, table: Table) -> None:
        """Revoke every block that a failed request read or wrote, so that no other request finds it."""
        finder = self._finder
        names = chain(product(finder.prefixes, table.hashes), product(finder.cross_prefixes, table.cross_hashes))
        self.revoke({prefix + name for prefix, name in names})

    def revoke(self, keys: Collection[bytes]) -> None:
        """Forget contents on the device, behind it, and with those who have fetched them."""
        for key in keys:
            self._pool.forget(key)
        if self._arrivals is not None:
            self._arrivals.revoke(keys)
        if self._tiers is not None:
            self._tiers.revoke(keys)

    def note(self, keys: Sequence[bytes]) -> None:
        """Another engine has revoked contents that came from it. May be called by any thread."""
        self.noted.append(keys)

    def take_noted(self) -> None:
        """Revoke what was noted, before a plan is made."""
        while self.noted:
            self.revoke(self.noted.popleft())
