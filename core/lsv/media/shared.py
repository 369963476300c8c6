"""Memory that another process of this user reads by reference: what is long must not pass through sockets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from lsv.request.media import Array, Stored

SUPPORTED = hasattr(os, "memfd_create")
"""Whether this system has memory to share (Linux); elsewhere long messages travel whole."""


def read_data(array: Array) -> bytearray:
    """A copy of an array's data, wherever they are.

    Raises ``OSError`` when the process that stored them has closed the memory or is gone.
    """
    stored = array.data
    if not isinstance(stored, Stored):
        return bytearray(stored)
    data = bytearray(stored.size)
    descriptor = os.open(stored.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with memoryview(data) as whole:
            done = 0
            while done < stored.size:
                count = os.preadv(descriptor, [whole[done:]], stored.offset + done)
                if not count:
                    raise OSError(f"shared memory ends {stored.size - done} bytes early")
                done += count
    finally:
        os.close(descriptor)
    return data


class SharedMemory:
    """Anonymous memory (memfd_create(2)): it leaves no name behind, and is gone with the processes that use it."""

    def __init__(self, name: str) -> None:
        self._descriptor: int | None = os.memfd_create(name, os.MFD_CLOEXEC)
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, parts: Sequence[bytes]) -> list[Stored]:
        """Copy ``parts`` into the memory. Raises ``OSError`` when there is not enough."""
        assert self._descriptor is not None, "the memory is closed"
        path, stored = f"/proc/{os.getpid()}/fd/{self._descriptor}", []
        for part in parts:
            stored.append(Stored(path, self._size, len(part)))
            with memoryview(part) as rest:
                done = 0
                while done < len(part):
                    done += os.write(self._descriptor, rest[done:])
            self._size += len(part)
        return stored

    def close(self) -> None:
        """Let go of the memory; those who have it open can read on. May be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)
