"""Contents that are not in files yet: promised by a request that computes them, then on their way."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence

PATIENCE = 5.0
"""Seconds that a content is waited for which workers were told to put, or which somebody is still to promise."""
_LOOK_SECONDS = 0.004
_REMEMBERED = 1 << 16
_MOST_AWAITED = 1 << 10


class Coming:
    """The engine's thread tells what becomes of them, threads that answer others wait for it."""

    def __init__(self) -> None:
        self._promised: Counter[bytes] = Counter()
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._news: OrderedDict[bytes, threading.Event] = OrderedDict()
        self._lock = threading.Lock()

    def promise(self, keys: Sequence[bytes]) -> None:
        """A request is going to compute them."""
        with self._lock:
            self._promised.update(keys)
            self._tell(keys)

    def withdraw(self, keys: Sequence[bytes]) -> None:
        """That request has ended."""
        with self._lock:
            for key in keys:
                self._promised[key] -= 1
                if self._promised[key] <= 0:
                    del self._promised[key]
            self._tell(keys)

    def expect(self, key: bytes) -> None:
        """Workers are about to put it."""
        with self._lock:
            self._until[key] = time.monotonic() + PATIENCE
            if len(self._until) > _REMEMBERED:
                self._until.popitem(last=False)
            self._tell((key,))

    def give_up(self, keys: Sequence[bytes]) -> None:
        """Stop waiting for contents that workers were about to put, because they are wrong."""
        with self._lock:
            for key in keys:
                self._until.pop(key, None)
            self._tell(keys)

    def wait(self, key: bytes, seconds: float, pending: float) -> bool:
        """Wait for news of a content that is in no file, but not for longer than that; False where it does not come.

        Until ``pending``, a time of ``time.monotonic``, it may still be promised.
        """
        now = time.monotonic()
        with self._lock:
            put = now < self._until.get(key, 0.0)
            if not put and not self._promised[key]:
                seconds = min(seconds, pending - now)
                if seconds <= 0:
                    return False
            news = None if put else self._await(key)
        if news is None:
            time.sleep(_LOOK_SECONDS)
        else:
            news.wait(seconds)
        return True

    def close(self) -> None:
        """Nobody waits any more."""
        with self._lock:
            self._tell(tuple(self._news))

    def _await(self, key: bytes) -> threading.Event:
        """What all who wait for a content share. Those who have gone leave theirs behind, so the oldest give way."""
        news = self._news.setdefault(key, threading.Event())
        if len(self._news) > _MOST_AWAITED:
            self._news.popitem(last=False)[1].set()
        return news

    def _tell(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            news = self._news.pop(key, None)
            if news is not None:
                news.set()
