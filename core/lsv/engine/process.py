"""An engine process as its parent sees it: started, watched, and never left behind."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from lsv.config import EngineConfig
from lsv.engine.messages import Boot, Failed
from lsv.errors import EngineDied, LsvError, from_record
from lsv.processes.wire import FrameReader, encode_frame

_BACKLOG = 64
_STOP_SECONDS = 5.0
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0


class EngineProcess:
    """One engine in a process of its own, reached through a socket in a folder that only this user can enter.

    Call ``start`` from a thread that lives as long as the engine shall: on Linux the process dies with it.
    ``restarts`` is how often a dead engine may be started again before it stays dead.
    """

    def __init__(self, config: EngineConfig, *, log_level: str = "INFO", restarts: int = 0) -> None:
        self.config = config
        self._log_level = log_level
        self._restarts = restarts
        self._delay = _FIRST_DELAY / 2
        self._folder: Path | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None

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
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start the process; it takes connections at once and loads the model meanwhile."""
        assert not self.running, "the engine is running"
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="lsv-"))  # mode 0700
        ours, theirs = socket.socketpair()
        with self._listen() as listener, theirs:
            ends = (listener.fileno(), theirs.fileno())
            self._child = subprocess.Popen(
                [sys.executable, "-m", "lsv.engine.loop", *map(str, ends), str(os.getpid())],
                pass_fds=ends,
                stdin=subprocess.DEVNULL,
                process_group=0,  # a Ctrl-C is for the parent, which lets requests end first
            )
        self._lifeline = ours
        with suppress(OSError):  # it died at once; whoever connects finds out
            ours.sendall(encode_frame(Boot(self.config, self._log_level)))

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
        reported = self._last_words(timeout)
        if reported is not None:
            return reported
        try:
            code = self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            return EngineDied("the engine process closed its connections")
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return EngineDied(f"the engine process {how}")

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """End the process, by force after ``timeout`` seconds, and remove its socket. May be called again."""
        self.end(timeout)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def end(self, timeout: float = _STOP_SECONDS) -> None:
        """End the process, by force after ``timeout`` seconds; it can be started again."""
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None
        if self._child is not None:
            try:
                self._child.wait(timeout)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()

    def _listen(self) -> socket.socket:
        """A fresh listener at the address; only the child keeps it, so that it ends with the child."""
        Path(self.address).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.address)
        listener.listen(_BACKLOG)
        return listener

    def _last_words(self, timeout: float) -> LsvError | None:
        """The error that came through the lifeline before its end."""
        lifeline = self._lifeline
        if lifeline is None:
            return None
        reader: FrameReader[Failed] = FrameReader(Failed)
        deadline = time.monotonic() + timeout
        with suppress(OSError):
            while (left := deadline - time.monotonic()) > 0:
                lifeline.settimeout(left)
                data = lifeline.recv(1 << 16)
                for message in reader.feed(data):
                    return from_record(message.error)
                if not data:
                    break
        return None
