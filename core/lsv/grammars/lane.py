"""The slow lane: a thread that follows answers with slow grammars while the engine steps without their rows.

Following a token may hold the interpreter's lock. After each token the thread therefore sleeps for twice as long as it
worked. It takes at most a third of one core, and holds the lock for at most a third of the time.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from lsv.grammars.followed import Followed

log = logging.getLogger(__name__)

_REST = 2.0
"""Seconds of rest for each second of work."""
_DELAY = 20.0
"""Delay of an answer's next turn, in seconds for each second that its last token took."""


class _Turn(NamedTuple):
    """The turn of an answer's next token. The earliest turn comes first."""

    at: float
    number: int
    followed: Followed
    ids: Sequence[int]
    words: int
    done: Future[bool]


class SlowLane:
    """Follows answers one token at a time, fast answers first."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []  # a heap
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def follow(self, followed: Followed, ids: Sequence[int], words: int) -> Future[bool]:
        """Follow tokens of an answer, then compute its next mask of ``words`` words. Whether it can go on."""
        done: Future[bool] = Future()
        turn = _Turn(time.monotonic() + _DELAY * followed.cost, next(self._numbers), followed, ids, words, done)
        with self._changed:
            heapq.heappush(self._turns, turn)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="slow-masks", daemon=True)
                self._thread.start()
        return done

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _work(self) -> None:
        while (turn := self._next()) is not None:
            if turn.done.set_running_or_notify_cancel():
                began = time.monotonic()
                turn.done.set_result(_follow(turn))
                time.sleep(_REST * (time.monotonic() - began))

    def _next(self) -> _Turn | None:
        with self._changed:
            self._changed.wait_for(lambda: self._turns or self._stopped)
            return None if self._stopped else heapq.heappop(self._turns)


def _follow(turn: _Turn) -> bool:
    followed, mask = turn.followed, np.zeros(turn.words, np.uint32)
    try:
        going = followed.accept(turn.ids)
        if going and not followed.finished:
            followed.fill(mask)
    except Exception:  # only this row fails
        log.exception("computing the mask of a grammar failed")
        going = True
        mask[:] = 0
    followed.mask = mask
    return going
