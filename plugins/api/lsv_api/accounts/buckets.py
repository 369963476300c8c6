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
from typing import IO, Self

from lsv.media.shared import SUPPORTED

_BUCKET = struct.Struct("<dd")
_LOCK_SECONDS = 0.05


class Buckets:
    """Token buckets by number: each fills at a rate up to its capacity, and is drained by use.

    They are in anonymous memory that processes share by an inherited descriptor, so a full disk does not matter. Times
    are from the machine's monotonic clock, which all processes share.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._memory = mmap.mmap(file.fileno(), 0)

    @classmethod
    def make(cls, count: int) -> Self:
        """New ones, all full."""
        if SUPPORTED:
            file: IO[bytes] = os.fdopen(os.memfd_create("lsv-buckets", os.MFD_CLOEXEC), "r+b")
        else:
            file = tempfile.TemporaryFile()  # noqa: SIM115
        file.write(bytes(max(1, count) * _BUCKET.size))  # allocates the memory before it is mapped
        file.flush()
        return cls(file)

    @classmethod
    def inherit(cls, descriptor: int) -> Self:
        """Those of the process that handed over their descriptor."""
        return cls(os.fdopen(descriptor, "r+b"))

    def fileno(self) -> int:
        """The descriptor to hand to another process."""
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
