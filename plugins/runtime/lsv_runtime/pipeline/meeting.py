"""Where the ranks of a group meet."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Meeting(NamedTuple):
    """Addresses of all ranks and of those on one machine, which can share memory; as in ``Group``."""

    address: str
    nearby: str = ""
    machine: range = range(0)
    """The ranks that ``nearby`` is for: those of a machine follow one another."""

    @classmethod
    def of_rank(cls, rank: int, address: str, place: tuple[int, int] | None, nearby: str) -> Meeting:
        """Where a rank meets others; see ``lsv_runtime.worker.channel.Start``."""
        if place is None or not nearby:
            return cls(address)
        number, count = place
        return cls(address, nearby, range(rank - number, rank - number + count))

    def of(self, ranks: Collection[int], name: str) -> str:
        """Where the ranks of a group called ``name`` meet: a file is for one group, a store for all."""
        address = self.nearby if self.machine and all(rank in self.machine for rank in ranks) else self.address
        return f"{address}-{name}" if address.startswith("/") else address
