"""Updates on their way to a reader who may be slow: they wait, merged into one for each request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lsv.engine.messages import Update
from lsv.scheduler.plan import join_logprobs


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
