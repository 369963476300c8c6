"""Which processes work on responses in the background: each holds a lock, which the kernel drops when it ends."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class WorkerMarks:
    """The locks of all processes that share a store, as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: int | None = None
        self._name = ""

    def take(self) -> str:
        """The name of this process, which others see working until it ends, however it ends."""
        if self._held is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep()
            self._name, self._held = self._make()
        return self._name

    def is_working(self, name: str) -> bool:
        with self._locked(self._folder / name) as ended:
            return not ended

    def close(self) -> None:
        if self._held is not None:
            (self._folder / self._name).unlink(missing_ok=True)
            os.close(self._held)
            self._held = None

    def _make(self) -> tuple[str, int]:
        """A new file, locked: made anew where another process has swept it away before that."""
        while True:
            name = secrets.token_hex(8)
            held = os.open(self._folder / name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(held, fcntl.LOCK_EX)
            if (self._folder / name).exists():
                return name, held
            os.close(held)

    def _sweep(self) -> None:
        """Delete the files of processes that have ended."""
        for path in self._folder.iterdir():
            with self._locked(path) as ended, suppress(FileNotFoundError):
                if ended:
                    path.unlink()

    @contextmanager
    def _locked(self, path: Path) -> Iterator[bool]:
        """Whether a file is nobody's: it is gone, or its lock can be had, and is held here meanwhile."""
        try:
            file = os.open(path, _FLAGS)
        except FileNotFoundError:
            yield True
            return
        try:
            yield _can_lock(file)
        finally:
            os.close(file)


def _can_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
