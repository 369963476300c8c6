"""Private folders that do not outlive their owner."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

_PREFIX = "lsv-run-"
_MEMORY = Path("/dev/shm")
"""A file system in memory, on systems that have one."""
_MEMORY_ROOM = 32 << 20
"""Free bytes it must have to be used."""
_SHORT = Path("/tmp")
_LONGEST = 78
"""Bytes of a temporary folder's path that leave room for a private folder and its sockets: the kernel takes 107."""


class PrivateFolder:
    """A new folder with mode 0700, for sockets and files where processes meet.

    The owner holds a lock on the folder. The kernel releases the lock however the owner ends, so creating the next
    folder also removes folders whose owner is gone. A ``with`` block removes the folder.

    With ``in_memory`` the folder is in memory if possible, because a disk may fill up. It is in /tmp if the path of the
    temporary folder is too long for sockets.
    """

    def __init__(self, *, in_memory: bool = False) -> None:
        _sweep()
        self.path, self._lock = _make(_MEMORY if in_memory and _has_memory() else _temporary())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder, and folders of children that were killed. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        _sweep()


def _has_memory() -> bool:
    try:
        return os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _MEMORY_ROOM
    except OSError:
        return False


def _temporary() -> Path:
    chosen = Path(tempfile.gettempdir())
    return chosen if len(os.fsencode(chosen)) <= _LONGEST else _SHORT


def _make(parent: Path) -> tuple[Path, int | None]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with suppress(FileNotFoundError):  # another process removed it before this one held the lock
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # a file system without locks, where no folders are swept
                fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


def _sweep() -> None:
    """Remove the folders whose owners have ended."""
    for path in (path for root in (_temporary(), _MEMORY) for path in root.glob(f"{_PREFIX}*")):
        with suppress(OSError):  # another user's, or gone already
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
