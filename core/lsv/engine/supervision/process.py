"""An engine process as its parent sees it."""

from __future__ import annotations

import socket
from pathlib import Path

from lsv.config import EngineConfig
from lsv.engine.messages import Beat, Boot
from lsv_base.errors import EngineDied, LsvError
from lsv_base.processes.child import Child

_BACKLOG = 64
_EXPLAIN_SECONDS = 2.0
"""How long a process whose channel has ended may take to end itself."""


class EngineProcess:
    """One run of an engine, which takes connections at ``address`` at once and loads its model meanwhile.

    On Linux it dies with the thread that makes this object. Raises ``OSError`` when it can't be started.
    """

    def __init__(self, config: EngineConfig, address: Path, log_level: str) -> None:
        with _listen(address) as listener:
            # In its own group: a Ctrl-C is for the parent, which lets requests end first.
            self._child: Child[Boot, Beat] = Child(
                "lsv.engine.main", Boot(config, log_level), Beat, inherited=(listener,), own_group=True
            )
        self._config = config
        self._limit, self._stage = config.load_timeout, "start"
        self.has_served = False
        """Whether it has taken requests."""

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.running

    def watch(self) -> LsvError | None:
        """Wait until it ends: the error it reported, or how it ended. None means that it hangs, see ``hang``."""
        try:
            while True:
                beat = self._child.receive(self._limit)
                self._limit, self._stage = beat.within, beat.stage
                self.has_served |= not beat.stage
        except LsvError as reported:
            return reported
        except TimeoutError:
            return None
        except (EOFError, OSError):
            return self._explain()
        except ValueError as damaged:
            return EngineDied(f"the engine sent an invalid message: {damaged}")

    @property
    def hang(self) -> EngineDied:
        """What it means that it has been silent for too long."""
        if self._stage:
            doing, limit = f"loading ({self._stage})", f"load_timeout={self._config.load_timeout:g}"
        else:
            doing, limit = "serving", f"step_timeout={self._config.step_timeout:g}"
        return EngineDied(f"the engine hangs while {doing}: no sign of life for longer than {limit} seconds")

    def dump_stacks(self) -> None:
        """Have it show in its log where it stands, and its workers, too."""
        self._child.dump_stacks()

    def ask_to_end(self) -> None:
        """It ends once its loop notices, and ``watch`` then returns. Another thread may call this."""
        self._child.channel.end_sending()

    def kill(self) -> None:
        """Kill it and the workers it has started; see ``Process.kill``. Another thread may call this."""
        self._child.kill()

    def end(self, seconds: float) -> None:
        """Give it ``seconds`` to end by itself, then kill it; let go of the channel."""
        self._child.end(seconds)

    def _explain(self) -> EngineDied:
        if self._child.wait(_EXPLAIN_SECONDS) is None:
            return EngineDied("the engine process closed its connections")
        return EngineDied(f"the engine process {self._child.how_it_ended()}")


def _listen(address: Path) -> socket.socket:
    """A fresh listener; only the child keeps it, so that it ends with the child."""
    address.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(address))
    listener.listen(_BACKLOG)
    return listener
