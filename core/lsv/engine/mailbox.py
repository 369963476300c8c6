"""Updates on their way to a slow reader: the engine has a mailbox per client, a client an inbox per request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from lsv.engine.messages import Update
from lsv.scheduler.plan import join_logprobs
from lsv_base.errors import LsvError


class Mailbox:
    """Updates that have not been read; it grows with the tokens of its sequences, not with steps."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], list[Update]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, updates: Iterable[Update]) -> None:
        for update in updates:
            self._waiting.setdefault((update.id, update.index), []).append(update)

    def take(self) -> tuple[Update, ...]:
        """Everything that waits, one update for each sequence."""
        waiting, self._waiting = self._waiting, {}
        return tuple(map(merge, waiting.values()))

    def discard(self, ids: Iterable[int]) -> None:
        """Drop the updates of these requests."""
        if self._waiting:
            dropped = frozenset(ids)
            self._waiting = {key: updates for key, updates in self._waiting.items() if key[0] not in dropped}

    def discard_sequence(self, id: int, index: int) -> None:
        """Drop the updates of one sequence."""
        self._waiting.pop((id, index), None)


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


def merge_all(updates: Iterable[Update]) -> Sequence[Update]:
    """Updates of any requests, as one for each."""
    mailbox = Mailbox()
    mailbox.put(updates)
    return mailbox.take()


def merge(updates: Sequence[Update]) -> Update:
    """Several updates of one sequence as one."""
    if len(updates) == 1:
        return updates[0]
    last = updates[-1]
    return Update(
        id=last.id,
        index=last.index,
        tokens=tuple(token for update in updates for token in update.tokens),
        logprobs=join_logprobs(update.logprobs for update in updates),
        prompt_logprobs=join_logprobs(update.prompt_logprobs for update in updates),
        vector=last.vector,
        start=next((update.start for update in updates if update.start is not None), None),
        drafted=last.drafted,
        computed=sum(update.computed for update in updates),
        preemptions=last.preemptions,
        finish=last.finish,
        stop=last.stop,
        complete=last.complete,
        error=last.error,
    )
