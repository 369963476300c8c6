"""What has arrived for one request of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lsv.engine.mailbox import merge_all
from lsv.engine.messages import Update
from lsv.errors import LsvError


class Inbox:
    """Updates of one request that its reader has not taken yet."""

    def __init__(self) -> None:
        self._updates: list[Update] = []
        self._reader: asyncio.Future[None] | None = None
        self._error: LsvError | None = None

    def put(self, update: Update) -> None:
        self._updates.append(update)
        self._wake()

    def fail(self, error: LsvError) -> None:
        self._error = error
        self._wake()

    async def take(self) -> Sequence[Update]:
        """Wait for updates, merged into one for each sequence; raises the error that ended the engine."""
        if not self._updates and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if not self._updates and self._error is not None:
            raise self._error
        updates, self._updates = self._updates, []
        return updates if len(updates) == 1 else merge_all(updates)

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)
