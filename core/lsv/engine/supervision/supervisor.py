"""The supervisor: starts an engine process, watches it, ends it when it hangs, and starts it again."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from lsv.config import EngineConfig
from lsv.engine.supervision.gang import Bond
from lsv.engine.supervision.process import EngineProcess
from lsv.engine.supervision.state import Supervision, publish, socket_in
from lsv_base.errors import EngineDied, LsvError, StartError
from lsv_base.processes.folder import PrivateFolder

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""What a process gets to end by itself."""
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0


class RestartPolicy:
    """At most ``limit`` restarts within any ``window`` seconds, each after twice the delay of the one before it."""

    def __init__(self, limit: int, window: float) -> None:
        self.limit, self.window = limit, window
        self._restarts: deque[float] = deque()

    def delay(self, now: float) -> float | None:
        """Use up a restart: the seconds to wait before it; None when none is left."""
        while self._restarts and self._restarts[0] <= now - self.window:
            self._restarts.popleft()
        if len(self._restarts) >= self.limit:
            return None
        self._restarts.append(now)
        return float(min(_FIRST_DELAY * 2 ** (len(self._restarts) - 1), _LONGEST_DELAY))


class Supervisor:
    """Keeps one engine process running from ``start`` to ``stop``; clients reach it at ``address``.

    Any number of clients in any process of this user's may connect there, and read with ``state.read`` what has become
    of an engine that they have lost. All work is done in a thread, which the processes die with.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        log_level: str = "INFO",
        restarts: RestartPolicy | None = None,
        gang: Bond | None = None,
    ) -> None:
        """With a ``gang``, the engine starts and ends with those of the gang's other supervisors."""
        self.config = config
        self._log_level = log_level
        self._gang = gang
        self._fallen: LsvError | None = None
        self._restarts = restarts or RestartPolicy(0, 1.0)
        self._folder = PrivateFolder()
        self._state = Supervision("down")
        self._process: EngineProcess | None = None
        self._has_served = False
        self._stopping = threading.Event()
        self._renewing = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        publish(self._folder.path, self._state)

    @property
    def address(self) -> Path:
        """The socket that clients connect to; the same after a restart."""
        return socket_in(self._folder.path)

    @property
    def process(self) -> EngineProcess | None:
        """The present process, if there is one."""
        return self._process

    def start(self) -> None:
        """Returns at once."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Have the process end, and start no other; returns at once. ``stop`` waits for it."""
        with self._lock:
            self._stopping.set()
            if self._process is not None:
                self._process.ask_to_end()
        if self._gang is not None:
            self._gang.disband()

    def renew(self) -> None:
        """End the process, which another one takes the place of; returns at once. The policy does not count that."""
        with self._lock:
            self._renewing.set()
            if self._process is not None:
                self._process.ask_to_end()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """End the process, by force after ``seconds``, and remove its socket. May be called again."""
        self.ask_to_stop()
        if self._thread.ident is not None:
            self._thread.join(seconds)
            if self._thread.is_alive() and self._process is not None:
                self._process.kill()
            self._thread.join(STOP_SECONDS)  # however few were left: it tells of the end, in the folder
        self._folder.remove()

    def _supervise(self) -> None:
        """Run one process after the other."""
        try:
            run = self._run_process if self._gang is None else partial(self._run_with, self._gang)
            while self._go_on(run()):
                pass
        except Exception as cause:
            log.exception("the supervisor of the engine failed")
            if self._gang is not None:
                self._gang.disband()  # the others wait for this one no longer
            try:
                self._publish("ended", EngineDied(f"the engine's supervisor failed: {type(cause).__name__}: {cause}"))
            except OSError:
                self._folder.remove()  # which says that there is no engine, too

    def _run_with(self, gang: Bond) -> LsvError:
        """As ``_run_process``, at the same time as all of the gang."""
        self._fallen, meeting = None, gang.assemble(self.config.topology.replica)
        if meeting is None:
            return EngineDied("the engine has been stopped")
        topology = msgspec.structs.replace(self.config.topology, meeting=meeting)
        error = self._run_process(msgspec.structs.replace(self.config, topology=topology))
        if not self._stopping.is_set():
            gang.leave(topology.replica, error)
        return self._fallen or error

    def _fall(self, error: LsvError) -> None:
        """Another engine of the gang has ended, so this one does."""
        self._fallen = error
        self._publish("down", error)  # before clients lose the process, so that they know why
        if self._process is not None:
            self._process.kill()

    def _run_process(self, config: EngineConfig | None = None) -> LsvError:
        """Start a process and watch it until it has ended; why it did. ``config`` None is its own."""
        with self._lock:
            if self._stopping.is_set():
                return EngineDied("the engine has been stopped")
            try:
                self._process = EngineProcess(config or self.config, self.address, self._log_level)
            except OSError as cause:
                return EngineDied(f"the engine can't be started: {cause}")
        process = self._process
        self._state = msgspec.structs.replace(self._state, run=self._state.run + 1)
        self._publish("running", None)
        if self._gang is not None:
            self._gang.enter(self.config.topology.replica, self._fall)
        patience = 0.0
        try:
            error = process.watch()
            if error is not None or self._stopping.is_set():  # one that is told to stop has no time for signs of life
                patience = STOP_SECONDS
                return error or process.hang
            self._publish("down", process.hang)  # first of all: a driver may keep it from ending
            log.error("%s; it is killed", process.hang.message)
            process.dump_stacks()
            return process.hang
        finally:
            process.end(patience)
            self._has_served |= process.has_served

    def _go_on(self, error: LsvError) -> bool:
        """Whether another process is to be started, once the delay is over."""
        stopping = self._stopping.is_set()
        if self._renewing.is_set() and not stopping:
            self._renewing.clear()
            self._publish("down", EngineDied("the engine is being replaced"))
            return True
        # what has kept the first one from starting will keep others; later ones may find memory that is still held
        hopeless = isinstance(error, StartError) and not self._has_served
        over = self._gang is not None and self._gang.over
        delay = None if stopping or hopeless or over else self._restarts.delay(time.monotonic())
        self._publish("ended" if delay is None else "down", error)
        if delay is None:
            if self._gang is not None:
                self._gang.disband()
            if not stopping:
                log.error("the engine is gone: %s", error.message)
            return False
        log.error("the engine is gone: %s; starting it again in %g s", error.message, delay)
        return not self._stopping.wait(delay)

    def _publish(self, state: Literal["running", "down", "ended"], error: LsvError | None) -> None:
        record = None if error is None else error.record()
        with self._lock:
            self._state = msgspec.structs.replace(self._state, state=state, error=record, served=self._has_served)
            publish(self._folder.path, self._state)
