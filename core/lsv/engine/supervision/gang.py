"""Engines that compute together: they start at the same time, and end together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from lsv.errors import EngineDied, LsvError, StartError
from lsv.processes.folder import PrivateFolder

Fall = Callable[[LsvError], None]
"""Ends an engine at once, with the error that this means to its clients."""


class Gang:
    """What the supervisors of ``size`` engines share. Each calls from a thread of its own."""

    def __init__(self, size: int, prepare: Callable[[Path], None]) -> None:
        """``prepare`` makes in a fresh folder what the engines need to find each other there."""
        self._size, self._prepare = size, prepare
        self._changed = threading.Condition()
        self._folder: PrivateFolder | None = None
        self._waiting = self._starts = 0
        self._running: dict[int, Fall] = {}
        self._cause: LsvError | None = None
        self.over = False
        """Whether there is no further start."""

    def assemble(self) -> Path | None:
        """Wait until all are about to start an engine: the folder where these meet. None once all is over."""
        with self._changed:
            start = self._starts
            self._waiting += 1
            if self._waiting == self._size and not self.over:
                self._begin()
            self._changed.wait_for(lambda: self._starts > start or self.over)
            return None if self.over or self._folder is None else self._folder.path

    def _begin(self) -> None:
        if self._folder is not None:
            self._folder.remove()
        self._folder = PrivateFolder()
        self._prepare(self._folder.path)
        self._waiting, self._cause = 0, None
        self._running.clear()
        self._starts += 1
        self._changed.notify_all()

    def enter(self, number: int, fall: Fall) -> None:
        """The engine of replica ``number`` has been started, which ``fall`` ends: at once if another has ended."""
        with self._changed:
            self._running[number] = fall
            cause = self._cause
        if cause is not None:
            fall(cause)

    def leave(self, number: int, error: LsvError) -> None:
        """That engine has ended, so all others do, of what the first one of them has ended of."""
        with self._changed:
            self._running.pop(number, None)
            if self._cause is not None:
                return
            self._cause = _name_cause(number, error)
            cause, others = self._cause, tuple(self._running.values())
        for fall in others:
            fall(cause)

    def disband(self) -> None:
        """No engine is to be started any more. May be called again."""
        with self._changed:
            self.over = True
            self._changed.notify_all()
            if self._folder is not None:
                self._folder.remove()


def _name_cause(number: int, error: LsvError) -> LsvError:
    """What the end of one engine is to the others. What keeps one from starting keeps all."""
    if isinstance(error, StartError):
        return error
    return EngineDied(f"replica {number} is gone, with which this one shares experts: {error.message}")
