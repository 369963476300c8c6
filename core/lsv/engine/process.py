"""An engine process as its parent sees it: started, watched, and never left behind."""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path

from lsv.config import EngineConfig
from lsv.engine.messages import Boot
from lsv.errors import EngineDied, LsvError
from lsv.processes.child import Child
from lsv.processes.wire import Failed

_BACKLOG = 64
_STOP_SECONDS = 5.0
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0


class EngineProcess:
    """One engine in a process of its own, reached through a socket in a folder that only this user can enter.

    Call ``start`` from a thread that lives as long as the engine is needed: on Linux the process dies with it.
    ``restarts`` is how often a dead engine may be started again before it stays dead.
    """

    def __init__(self, config: EngineConfig, *, log_level: str = "INFO", restarts: int = 0) -> None:
        self.config = config
        self._log_level = log_level
        self._restarts = restarts
        self._delay = _FIRST_DELAY / 2
        self._folder: Path | None = None
        self._child: Child[Boot, Failed] | None = None

    @property
    def address(self) -> str:
        """The path of the socket clients connect to; the same after a restart."""
        assert self._folder is not None, "the engine has not been started"
        return str(self._folder / "engine.sock")

    @property
    def pid(self) -> int:
        assert self._child is not None, "the engine has not been started"
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def start(self) -> None:
        """Start the process; it takes connections at once and loads the model meanwhile."""
        assert not self.running, "the engine is running"
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="lsv-"))  # mode 0700
        boot = Boot(self.config, self._log_level)
        with self._listen() as listener:
            # In its own group: a Ctrl-C is for the parent, which lets requests end first.
            self._child = Child("lsv.engine.loop", boot, Failed, inherited=(listener,), own_group=True)

    def restart(self) -> float | None:
        """Use up one restart: the seconds to wait before ``start``, doubling each time; None when none is left."""
        if self._restarts <= 0:
            return None
        self._restarts -= 1
        self._delay = min(2 * self._delay, _LONGEST_DELAY)
        return self._delay

    def explain(self, timeout: float = _STOP_SECONDS) -> LsvError:
        """Why the engine ended: the error it reported, else how its process ended. Waits up to ``timeout`` seconds."""
        assert self._child is not None, "the engine has not been started"
        reported = self._child.reported_error(timeout)
        if reported is not None:
            return reported
        if self._child.wait(timeout) is None:
            return EngineDied("the engine process closed its connections")
        return EngineDied(f"the engine process {self._child.how_it_ended()}")

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """End the process, by force after ``timeout`` seconds, and remove its socket. May be called again."""
        self.end(timeout)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def end(self, timeout: float = _STOP_SECONDS) -> None:
        """End the process, by force after ``timeout`` seconds; it can be started again."""
        if self._child is not None:
            self._child.end(timeout)

    def _listen(self) -> socket.socket:
        """A fresh listener at the address; only the child keeps it, so that it ends with the child."""
        Path(self.address).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.address)
        listener.listen(_BACKLOG)
        return listener
