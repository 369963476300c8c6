"""Contents that an engine has revoked: consumers that have fetched them hear of it, and nobody gets them any more."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from lsv.transports.exchange import TransferFailed
from lsv_kv_offload.producers import Producers
from lsv_kv_offload.wire import Ask

_REMEMBERED = 1 << 16
_REST_SECONDS = 2.0
"""How long a watch waits before it connects to a producer again."""

Note = Callable[[Sequence[bytes]], None]


class Notices:
    """The producer's side: contents that were revoked since the start, the latest of them.

    A consumer that connects hears of all of them. One that it has fetched anew since is computed again, at worst.
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
        """A content of this name is put anew."""
        self._gone.discard(key)

    def __contains__(self, key: bytes) -> bool:
        """Whether a file of this name may still be there that is wrong."""
        return key in self._gone

    def wait(self, seen: int, seconds: float) -> tuple[list[bytes], int]:
        """What was revoked after the first ``seen``, and how many that makes; nothing after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._count > seen, seconds)
            return [key for key, number in self._numbers.items() if number > seen], self._count

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Watches:
    """The consumer's side: a thread for each producer that something was fetched from."""

    def __init__(self, producers: Producers, ask: Ask) -> None:
        """``ask`` is the question that producers answer with notices, for as long as both are there."""
        self._producers, self._ask = producers, ask
        self._note: Note = lambda keys: None
        self._watched: set[str] = set()
        self._closed = threading.Event()

    def follow(self, note: Note) -> None:
        """Call ``note`` with contents that a producer has revoked, in one of the threads."""
        self._note = note

    def begin(self, peer: str) -> None:
        """Watch a producer from now on, if it is not watched yet. May be called by several threads at a time."""
        if peer not in self._watched:
            self._watched.add(peer)
            threading.Thread(target=self._watch, args=(peer,), name="kv-watch", daemon=True).start()

    def close(self) -> None:
        """Connections are those of the producers, which close them."""
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
