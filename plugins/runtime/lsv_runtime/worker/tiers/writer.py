"""Writes contents to a transport in the background."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from lsv.transports import Transport
from lsv_runtime.devices.device import Event

_log = logging.getLogger(__name__)

_MOST = 256 << 20
"""Limit on queued bytes."""
_LAST_SECONDS = 10.0
"""How long an ending engine writes queued contents."""


class _Batch(NamedTuple):
    keys: Sequence[bytes]
    contents: Sequence[Tensor]
    """A content for each key to put; none if the keys are to be removed."""
    size: int
    there: Event | None


class Writer:
    """A thread that puts and removes contents. Contents that exceed the queue are dropped."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._queue: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._dropped = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kv-writer", daemon=True)
        self._thread.start()

    def put(self, keys: Sequence[bytes], contents: Sequence[Tensor], there: Event | None) -> None:
        """Queue contents, which are complete once the device has passed ``there``. The writer owns them."""
        size = sum(content.nbytes for content in contents)
        with self._lock:
            full = self._waiting + size > _MOST
            self._waiting += 0 if full else size
        if not full:
            self._queue.put(_Batch(keys, contents, size, there))
        elif not self._dropped:
            self._dropped = True
            _log.warning("the KV cache is computed faster than it can be kept: some of it will be computed again")

    def remove(self, keys: Sequence[bytes]) -> None:
        """Queue the removal of contents, after all earlier puts."""
        self._queue.put(_Batch(keys, (), 0, None))

    def flush(self) -> None:
        """Wait until the queue is written; for tests."""
        done = threading.Event()
        batch = _Batch((), (), 0, _Done(done))
        self._queue.put(batch)
        done.wait(_LAST_SECONDS)

    def close(self) -> None:
        """Write the rest of the queue, within a time limit."""
        self._queue.put(None)
        self._thread.join(_LAST_SECONDS)
        self._closing = True

    def _handle(self, batch: _Batch) -> None:
        if not batch.contents:
            for key in batch.keys:
                self._transport.remove(key)
            return
        for key, content in zip(batch.keys, batch.contents, strict=True):
            self._transport.put(key, content.numpy().reshape(-1).data)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None and not self._closing:
            try:
                if batch.there is not None:
                    batch.there.synchronize()
                self._handle(batch)
            except Exception:
                _log.exception("a part of the KV cache could not be kept")
            with self._lock:
                self._waiting -= batch.size


class _Done:
    """Marks a place in the queue; set once it is reached."""

    def __init__(self, done: threading.Event) -> None:
        self._done = done

    def synchronize(self) -> None:
        self._done.set()
