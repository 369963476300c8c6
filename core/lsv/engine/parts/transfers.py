"""KV transfers: a request whose prompt another engine computes waits for the blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lsv.engine.parts.part import Part
from lsv.errors import LsvError
from lsv.kv.manager import KVManager
from lsv.request.group import RequestGroup
from lsv.transports.fetches import Fetches


class TransfersPart(Part):
    """Fetches what other engines have of a prompt, and promises them what this one computes."""

    name = "kv"

    def __init__(self, fetches: Fetches, kv: Callable[[], KVManager]) -> None:
        self._fetches, self._kv = fetches, kv

    def open(self, group: RequestGroup) -> bool:
        """Raises ``BadRequest`` for an engine that is not to be fetched from."""
        return self._fetches.open(group, self._kv())

    def ready(self) -> Iterable[tuple[int, LsvError | None]]:
        return [(group, None) for group in self._fetches.take()]

    def close(self, group: int) -> None:
        self._fetches.close(group)

    def stop(self) -> None:
        self._fetches.stop()
