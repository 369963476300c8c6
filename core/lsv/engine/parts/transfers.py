"""KV transfers: a request whose prompt another engine computes waits for the blocks."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lsv.config import Fit
from lsv.engine.messages import Stats
from lsv.engine.parts.part import Host, Part, PartContext
from lsv.request.group import RequestGroup
from lsv.transports.fetches import Fetches
from lsv_base.errors import LsvError


def make_transfers(context: PartContext) -> TransfersPart:
    """The part of an engine that fetches, or that refuses to by name."""
    return TransfersPart(Fetches(context.config), context.engine)


class TransfersPart(Part):
    """Fetches what other engines have of a prompt, and promises them what this one computes."""

    name = "kv"

    def __init__(self, fetches: Fetches, engine: Host) -> None:
        self._fetches, self._engine = fetches, engine

    def start(self, fit: Fit) -> None:
        self._fetches.exchange = self._engine.exchange

    def open(self, group: RequestGroup) -> bool:
        """Raises ``BadRequest`` for an engine that is not to be fetched from."""
        return self._fetches.open(group, self._engine.kv)

    def ready(self) -> Iterable[tuple[int, LsvError | None]]:
        return [(group, None) for group in self._fetches.take()]

    def close(self, group: int) -> None:
        self._fetches.close(group)

    def complete(self, stats: Stats) -> Stats:
        if stats.offload is None or self._engine.exchange is None:
            return stats
        return msgspec.structs.replace(stats, offload=self._fetches.counted(stats.offload))

    def stop(self) -> None:
        self._fetches.stop()
