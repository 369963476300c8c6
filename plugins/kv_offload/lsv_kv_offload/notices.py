"""Notices of revoked contents: producers stop serving them and notify consumers that fetched them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from lsv.transports.exchange import TransferFailed
from lsv_kv_offload.producers import Producers
from lsv_kv_offload.wire import Ask

_REMEMBERED = 1 << 16
_REST_SECONDS = 2.0
"""Seconds before a watch connects to a producer again."""

Note = Callable[[Sequence[bytes]], None]


class Notices:
    """The producer's side: the latest contents revoked since the start.

    A new consumer gets all of them. At worst it recomputes a content that it has fetched again since.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[bytes, int] = OrderedDict()  # by key, in the order of the numbers
        self._gone: set[bytes] = set()
        self._count = 0
        self._closed = False
        self._changed = threading.Condition()

    def add(self, keys: Sequence[bytes]) -> None:
        with self._changed:
            for key in keys:
                self._count += 1
                self._numbers[key] = self._count
                self._numbers.move_to_end(key)
                self._gone.add(key)
            while len(self._numbers) > _REMEMBERED:
                self._gone.discard(self._numbers.popitem(last=False)[0])
            self._changed.notify_all()

    def renew(self, key: bytes) -> None:
        """Record that a content of this name is put again."""
        self._gone.discard(key)

    def __contains__(self, key: bytes) -> bool:
        """Whether a wrong file of this name may still exist."""
        return key in self._gone

    def wait(self, seen: int, seconds: float) -> tuple[list[bytes], int]:
        """The contents revoked after the first ``seen``, and the new total; none if nothing comes within the time
        limit.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._count > seen, seconds)
            return [key for key, number in self._numbers.items() if number > seen], self._count

    def close(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Watches:
    """The consumer's side: a thread for each producer from which contents were fetched."""

    def __init__(self, producers: Producers, ask: Ask) -> None:
        """``ask`` is the request that producers answer with notices, as long as both run."""
        self._producers, self._ask = producers, ask
        self._note: Note = lambda keys: None
        self._watched: set[str] = set()
        self._closed = threading.Event()

    def follow(self, note: Note) -> None:
        """Call ``note``, in one of the threads, with contents that a producer has revoked."""
        self._note = note

    def begin(self, peer: str) -> None:
        """Watch a producer from now on, if it is not watched yet. May be called by several threads at a time."""
        if peer not in self._watched:
            self._watched.add(peer)
            threading.Thread(target=self._watch, args=(peer,), name="kv-watch", daemon=True).start()

    def close(self) -> None:
        """Stop. The producers close the connections."""
        self._closed.set()

    def _watch(self, peer: str) -> None:
        while not self._closed.is_set():
            try:
                with self._producers.call(peer, None, self._ask.seconds) as line:
                    line.send_ask(self._ask)
                    while True:
                        self._note(line.read_notice())
            except TransferFailed:
                self._closed.wait(_REST_SECONDS)
