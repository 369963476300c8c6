"""Token buckets in memory that all API processes share."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_BUCKET = struct.Struct("<dd")
_LOCK_SECONDS = 0.05


class Buckets:
    """``count`` token buckets: each fills at a rate up to its capacity, and is drained by use.

    They lie in an unnamed file, which processes inherit by its ``descriptor``; without one, this process makes the
    file. Times are of the machine's monotonic clock, which is the same in all processes.
    """

    def __init__(self, count: int, descriptor: int | None = None) -> None:
        self._file = tempfile.TemporaryFile() if descriptor is None else os.fdopen(descriptor, "r+b")  # noqa: SIM115
        size = max(1, count) * _BUCKET.size
        if descriptor is None:
            self._file.truncate(size)
        self._memory = mmap.mmap(self._file.fileno(), size)

    @property
    def descriptor(self) -> int:
        """To hand to another process."""
        return self._file.fileno()

    def use(self, number: int, amount: float, *, capacity: float, rate: float, now: float) -> float:
        """Take ``amount`` out of a bucket and give what is left, which may be less than nothing.

        ``rate`` is per second. An amount of 0 only looks.
        """
        with self._locked():
            used, since = _BUCKET.unpack_from(self._memory, number * _BUCKET.size)
            used = max(0.0, used - max(0.0, now - since) * rate) + amount
            _BUCKET.pack_into(self._memory, number * _BUCKET.size, used, now)
        return capacity - used

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock is held for microseconds. A process that was stopped in these must not stop the others, too."""
        ends = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < ends:
            with suppress(BlockingIOError):
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            os.sched_yield()
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        self._memory.close()
        self._file.close()
