"""The loop of an engine's process: steps while there is work, and sockets between steps, all in one thread.

Clients come through the listener. The lifeline is a channel to the parent: ``Beat`` goes out as a sign of life and
``Failed`` if need be, and its end is the end of the process. A beat says that this thread goes on.
"""

from __future__ import annotations

import logging
import selectors
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from lsv.config import EngineConfig, Fit
from lsv.engine import report
from lsv.engine.connection import Connection, ConnectionLost, Connections
from lsv.engine.engine import Engine
from lsv.engine.messages import (
    PROTOCOL,
    Abort,
    Beat,
    ClientMessage,
    Controlled,
    Failed,
    Finish,
    Hello,
    Progress,
    Ready,
    Submit,
    Update,
    Welcome,
)
from lsv.engine.open_requests import make_refusal
from lsv.engine.orders.orders import Orders
from lsv_base.errors import LsvError
from lsv_base.processes import heap
from lsv_base.processes.wire import encode_frame
from lsv_base.version import __version__

log = logging.getLogger(__name__)

_IDLE_WAIT = 0.01
"""Seconds between steps while every request waits for something other than a step."""
_WHOLE_MESSAGE = 0.002
"""Seconds that a step may wait for the rest of a message that has arrived in part."""
_FAREWELL = 0.5
"""Seconds a slow reader gets to read why the engine ended."""
_TRIM_INTERVAL = 30.0
"""Seconds after which free memory goes back to the system."""


class EngineLoop:
    """Serves one engine to any number of connections until its parent is gone or it is told to stop."""

    def __init__(self, engine: Engine[int], listener: socket.socket, lifeline: socket.socket) -> None:
        self._engine = engine
        self._lifeline = lifeline
        self._selector = selectors.DefaultSelector()
        self._connections = Connections(listener, self._selector, on_message=self._handle, on_lost=self._leave)
        self._progress = Progress("starting", 0, 0)
        self._fit: Fit | None = None
        self._stopped = False
        self._orders = Orders(engine, self._announce, self._reply)
        self._next_beat = 0.0
        self._next_trim = time.monotonic() + _TRIM_INTERVAL
        self._assumed = self._told = engine.parts.notices
        """What clients assume at first, and the notices that they got last."""
        self._stats_changed = False
        """Whether clients must be told of a change that no step has brought."""
        self._selector.register(lifeline, selectors.EVENT_READ, self._stop)
        for part in engine.parts.all:
            for end, read in part.sockets.items():
                self._selector.register(end, selectors.EVENT_READ, partial(_call, read))

    def load(self) -> Fit:
        """Start the engine and report its progress. Raises ``StartError``, or ``SystemExit`` when told to stop."""
        stages = report.Stages()

        def show(stage: str, done: int, total: int) -> None:
            stages.enter(stage)
            self._show_progress(stage, done, total)

        self._beat("start")
        self._fit = self._engine.start(show)
        stages.end()
        self._orders.ready = True
        self._next_beat = 0.0
        self._beat()  # before anybody counts on it, the limit is that of steps
        self._tell_of_changes()
        self._connections.broadcast(Ready(self._fit))
        return self._fit

    def run(self) -> None:
        """Step while there is work, sleep otherwise. Raises ``EngineDied``."""
        while not self._stopped:
            self._poll(self._poll_timeout())
            self._finish_reading()
            self._beat()
            self._trim()
            changed, self._stats_changed = self._stats_changed, False
            if self._engine.has_work:
                self._deliver(self._engine.step())
            elif changed:
                self._deliver({})
            self._orders.answer_waiting()
            self._tell_of_changes()

    def fail(self, error: LsvError) -> None:
        """Tell all clients and the parent why the engine ends."""
        message = Failed(error.record())
        self._connections.broadcast(message)
        self._connections.stop_listening()
        self._selector.unregister(self._lifeline)
        with suppress(OSError):  # the parent may be gone, too
            self._lifeline.sendall(encode_frame(message))
        if self._connections.are_behind:
            self._poll(_FAREWELL)

    def _show_progress(self, stage: str, done: int, total: int) -> None:
        self._progress = Progress(stage, done, total)
        self._connections.broadcast(self._progress)
        self._beat(stage)
        self._poll(0.0)
        if self._stopped:
            sys.exit(0)

    def _beat(self, stage: str = "") -> None:
        """Once in a while, tell parent and clients that this thread goes on, and make sure that the workers do.

        Raises ``EngineDied`` when they don't.
        """
        now, config = time.monotonic(), self._engine.config
        if now < self._next_beat:
            return
        self._next_beat = now + config.beat_interval
        if not stage and not self._engine.has_work:
            self._engine.check()
        beat = _make_beat(config, stage)
        with suppress(OSError):  # the parent does not read: it has signs of life enough
            self._lifeline.send(encode_frame(beat), socket.MSG_DONTWAIT)
        self._connections.broadcast(beat, if_not_behind=True)

    def _trim(self) -> None:
        now = time.monotonic()
        if now >= self._next_trim:
            self._next_trim = now + _TRIM_INTERVAL
            heap.trim()

    def _poll_timeout(self) -> float:
        """Seconds to wait for the sockets."""
        if self._stats_changed:
            return 0.0
        if not self._engine.has_work:
            return max(0.0, self._next_beat - time.monotonic())
        return _IDLE_WAIT if self._engine.stalled else 0.0

    def _poll(self, wait: float) -> None:
        """Serve the sockets: new clients, messages, readers that are ready for more."""
        for key, _ in self._selector.select(wait):
            key.data(key.fileobj)

    def _finish_reading(self) -> None:
        """Let clients finish messages that have arrived in part: an image is more than a socket holds at a time."""
        ends = time.monotonic() + _WHOLE_MESSAGE
        while self._connections.are_receiving:
            left = ends - time.monotonic()
            if left <= 0:
                break
            self._poll(left)

    def _stop(self, _: object) -> None:
        """The lifeline has ended: the parent stops this process, or is gone."""
        self._stopped = True

    def _handle(self, number: int, connection: Connection, message: ClientMessage) -> None:
        if isinstance(message, Submit):
            self._submit(number, connection, message)
        elif isinstance(message, Abort):
            self._engine.abort(number, message.ids)
            connection.discard(message.ids)
            self._stats_changed = True
        elif isinstance(message, Finish):
            self._engine.finish(number, message)
            connection.discard_sequence(message.id, message.index)
            self._stats_changed = True
        elif isinstance(message, Hello):
            self._welcome(connection, message)
        else:
            self._orders.take(number, message)
            self._tell_of_changes()

    def _submit(self, number: int, connection: Connection, message: Submit) -> None:
        try:
            self._orders.check_open()
            self._engine.submit(number, message)
        except LsvError as error:
            log.info("req=%s refused: %s", message.spec.request_id, error.message)
            connection.deliver([make_refusal(message.id, error)], self._engine.stats)

    def _welcome(self, connection: Connection, hello: Hello) -> None:
        config = self._engine.config
        if hello.protocol != PROTOCOL:
            raise ConnectionLost(f"the client speaks protocol {hello.protocol}, this engine {PROTOCOL}")
        connection.send(Welcome(PROTOCOL, __version__, config.fingerprint(), config))
        for notice in self._told:
            if notice not in self._assumed:
                connection.send(notice)
        connection.send(self._progress if self._fit is None else Ready(self._fit))
        connection.send(_make_beat(config, self._progress.stage if self._fit is None else ""))
        connection.deliver((), self._engine.stats)

    def _reply(self, number: int, answer: Controlled) -> None:
        self._tell_of_changes()
        self._connections.send(number, answer)

    def _announce(self, stage: str) -> None:
        """What follows may take as long as loading does."""
        self._next_beat = 0.0
        self._beat(stage)
        self._next_beat = 0.0  # the next one says again that steps are computed

    def _tell_of_changes(self) -> None:
        """Tell all clients what has changed about the engine's parts."""
        told, self._told = self._told, self._engine.parts.notices
        if told != self._told:
            for notice in self._told:
                if notice not in told:
                    self._connections.broadcast(notice)

    def _deliver(self, updates: dict[int, list[Update]]) -> None:
        self._connections.deliver(updates, self._engine.stats)

    def _leave(self, number: int) -> None:
        """A client is gone."""
        self._orders.leave(number)
        if self._fit is not None and self._engine.failure is None:
            self._engine.abort_all(number)
            self._stats_changed = True


def _make_beat(config: EngineConfig, stage: str) -> Beat:
    limit = config.load_timeout if stage else config.step_timeout
    return Beat(limit + 2 * config.beat_interval, stage)  # an executor that watches workers is to notice first


def _call(read: Callable[[], None], _: object) -> None:
    read()
