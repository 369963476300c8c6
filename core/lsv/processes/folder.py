"""Folders: one that only this user can enter and that does not outlive its owner, and one for what is kept."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from lsv.settings import Declared, gather, options

_PREFIX = "lsv-run-"
_MEMORY = Path("/dev/shm")
"""A file system in memory, where there is one."""
_MEMORY_ROOM = 32 << 20
"""Bytes that must be free there for it to be chosen."""


def cache_root() -> Path:
    """The folder of this user's caches, lsv's and others': as its variables say, or ~/.cache."""
    chosen: str | None = gather(Declared(options.CACHING), {})["cache_root"]
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache"


class PrivateFolder:
    """A new folder with mode 0700, for sockets and files where processes meet.

    Its owner holds a lock on it, which the kernel drops when the owner ends, however it ends. So whoever makes the next
    one can tell which folders are nobody's any more, and removes those. A ``with`` block removes it.

    With ``in_memory`` it is not on a disk where that can be avoided: a disk may fill up.
    """

    def __init__(self, *, in_memory: bool = False) -> None:
        _sweep()
        self.path, self._lock = _make(_MEMORY if in_memory and _has_memory() else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it, and those of children that were killed. May be called again."""
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


def _make(parent: Path | None) -> tuple[Path, int | None]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with suppress(FileNotFoundError):  # somebody swept before the lock was ours
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # on a file system without locks nobody sweeps
                fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


def _sweep() -> None:
    """Remove the folders whose owners have ended."""
    for path in (path for root in (Path(tempfile.gettempdir()), _MEMORY) for path in root.glob(f"{_PREFIX}*")):
        with suppress(OSError):  # another user's, or gone already
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
