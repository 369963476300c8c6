"""Engines that compute together: they start at the same time, and end together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from lsv_base.errors import EngineDied, LsvError, StartError

Fall = Callable[[LsvError], None]
"""Ends an engine at once, with the error that this means to its clients."""
Begin = Callable[[str], None]
"""Has an engine start, told where it meets the others."""


class Place(Protocol):
    """Where the engines of one start meet."""

    @property
    def address(self) -> str:
        """As in ``Topology.meeting``."""
        ...

    def close(self) -> None:
        """Nobody meets there any more. May be called again."""
        ...


class Bond(Protocol):
    """What ties an engine's supervisor to those of others: a ``Gang``, or what stands for one that is elsewhere."""

    over: bool

    def assemble(self, number: int) -> str | None: ...

    def enter(self, number: int, fall: Fall) -> None: ...

    def leave(self, number: int, error: LsvError) -> None: ...

    def disband(self) -> None: ...


class Gang:
    """What the supervisors of ``size`` engines share. Each calls from a thread of its own."""

    def __init__(self, size: int, make_place: Callable[[], Place]) -> None:
        """``make_place`` makes another one for each start."""
        self._size, self._make_place = size, make_place
        self._changed = threading.Condition()
        self._place: Place | None = None
        self._waiting: dict[int, Begin] = {}
        self._running: dict[int, Fall | None] = {}
        """Those that have begun; None until they can be ended."""
        self._followers: list[Fall] = []
        self._cause: LsvError | None = None
        self.over = False
        """Whether there is no further start."""

    @property
    def meeting(self) -> str:
        """Where the engines meet that were started last."""
        place = self._place
        return "" if place is None else place.address

    def assemble(self, number: int) -> str | None:
        """Wait until all are about to start an engine, this one that of replica ``number``: where these meet. None once
        all is over.
        """
        begun: list[str] = []
        with self._changed:
            self.expect(number, begun.append)
            self._changed.wait_for(lambda: begun or self.over)
            return None if self.over else begun[0]

    def expect(self, number: int, begin: Begin) -> None:
        """As ``assemble``, for one that is elsewhere: ``begin`` is called when all are about to start."""
        with self._changed:
            self._waiting[number] = begin
            if len(self._waiting) == self._size and not self.over:
                self._begin()

    def _begin(self) -> None:
        if self._place is not None:
            self._place.close()
        self._place = self._make_place()
        begins, self._waiting, self._cause = self._waiting, {}, None
        self._running = dict.fromkeys(begins)
        for begin in begins.values():
            begin(self._place.address)
        self._changed.notify_all()

    def enter(self, number: int, fall: Fall) -> None:
        """The engine of replica ``number`` has been started, which ``fall`` ends: at once if another has ended."""
        with self._changed:
            self._running[number] = fall
            cause = self._cause
        if cause is not None:
            fall(cause)

    def leave(self, number: int, error: LsvError) -> None:
        """That engine has ended, so all others do, of what the first one of them has ended of; or it only waits no
        more.
        """
        with self._changed:
            self._waiting.pop(number, None)
            if number not in self._running:
                return
            del self._running[number]
            if self._cause is not None:
                return
            self._cause = _name_cause(number, error)
            cause, others = self._cause, tuple(self._running.values())
        for fall in others:
            if fall is not None:
                fall(cause)

    def follow(self, end: Fall) -> None:
        """One that is elsewhere hears by ``end`` that no engine is to be started any more."""
        self._followers.append(end)

    def disband(self) -> None:
        """No engine is to be started any more. May be called again."""
        with self._changed:
            followers = () if self.over else tuple(self._followers)
            self.over = True
            self._changed.notify_all()
            if self._place is not None:
                self._place.close()
        for end in followers:
            end(self._cause or EngineDied("the engine has been stopped"))


def _name_cause(number: int, error: LsvError) -> LsvError:
    """What the end of one engine is to the others. What keeps one from starting keeps all."""
    if isinstance(error, StartError):
        return error
    return EngineDied(f"replica {number} is gone, with which this one shares experts: {error.message}")
