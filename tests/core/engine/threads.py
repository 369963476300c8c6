"""An engine process as a thread. The messages between supervisor, clients and engine are the real ones."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

from lsv.engine.engine import Engine
from lsv.engine.loop import EngineLoop
from lsv.engine.messages import Beat, Boot
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import LsvError
from lsv_base.processes.peer import Peer
from lsv_testing.fakes.engine import FakeExecutor, core_parts

_KILL_SECONDS = 10.0


class LoopThread(Peer[Boot, Beat]):
    """Replaces the ``Child`` of an ``EngineProcess``. It can't be killed, and it logs like the test itself."""

    pid = os.getpid()

    def __init__(
        self, module: str, first: Boot, receives: Any, *, inherited: Sequence[socket.socket], own_group: bool
    ) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours, receives)
        (listener,) = inherited
        self._thread = Thread(target=_serve, args=(first, listener.dup(), theirs), name=module, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float) -> int | None:
        self._thread.join(seconds)
        return None if self.running else 0

    def kill(self) -> None:
        self.end(_KILL_SECONDS)
        assert not self.running, "the engine's thread does not end"

    def end(self, seconds: float = 0.0) -> None:
        self.channel.close()
        self.wait(seconds)

    def how_it_ended(self) -> str:
        return "ended with exit code 0"

    def dump_stacks(self) -> None: ...


def _serve(boot: Boot, listener: socket.socket, lifeline: socket.socket) -> None:
    """As the module ``lsv.engine.main``, with the fake executor."""
    engine: Engine[int] = Engine(boot.config, FakeExecutor(), Fcfs(), parts=core_parts)
    loop = EngineLoop(engine, listener, lifeline)
    try:
        with suppress(SystemExit):  # stopped while loading
            loop.load()
            loop.run()
    except LsvError as error:
        loop.fail(error)
    finally:
        engine.close()
        for end in (*loop._connections._open.values(), listener, lifeline):
            end.close()
        loop._selector.close()
