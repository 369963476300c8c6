"""A machine with replicas of a server that is on another: it runs their engines, and connects them with that."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from lsv.config import EngineConfig
from lsv.engine.messages import ClientMessage, Control, Controlled, EngineMessage, Hello, Progress, Ready
from lsv.engine.orders.order import Drain
from lsv.engine.replicas.nodes.line import Line, cancel, in_loop, splice, stream_over
from lsv.engine.replicas.nodes.messages import (
    Dial,
    Enlist,
    Fall,
    FromNode0,
    Goodbye,
    Renew,
    Taken,
    Together,
    Told,
    ToNode0,
    Welcome,
)
from lsv.engine.replicas.supervisors import Supervisors
from lsv.engine.supervision import state as supervision
from lsv.engine.supervision.supervisor import RestartPolicy
from lsv.processes.nodes.handshake import JOINING
from lsv.processes.nodes.newcomer import describe
from lsv.processes.nodes.reaching import Way, keep_joining, reach
from lsv_base.errors import ConfigError, EngineDied, LsvError, from_record
from lsv_base.processes.orders import encode_order
from lsv_base.processes.wire import Failed

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
_DIAL_SECONDS = 5.0
"""In which node 0, which has just asked for it, has to take a connection."""


EngineLine = Line[ClientMessage, EngineMessage]


class _Held(Exception):
    """Another machine has these replicas, or had them a moment ago."""


def serve_replicas(
    configs: Sequence[EngineConfig],
    *,
    key: bytes,
    log_level: str,
    restarts: Callable[[], RestartPolicy],
    drain: float,
) -> None:
    """Run this machine's engines, of replicas one after another, until the server has ended as it was told to, or this
    process is: by SIGTERM, after which requests get ``drain`` seconds to end, and no new ones come.

    While that is gone and may come back (see ``keep_joining``), they stay as they are. Raises what the server has ended
    with, ``StartError`` where it can't be joined, and what this machine's engines died of once none is left.
    """
    supervisors = Supervisors(configs, log_level=log_level, restarts=restarts)
    member = Member(configs, supervisors, key, drain=drain)
    try:
        error = keep_joining(member.join, restarts().delay)
    finally:
        supervisors.stop()
    if error is not None:
        raise error


class Member:
    """This machine, to node 0."""

    def __init__(self, configs: Sequence[EngineConfig], supervisors: Supervisors, key: bytes, *, drain: float) -> None:
        self._config = configs[0]
        nodes = self._config.replica_nodes
        assert nodes is not None, "replicas on several machines"
        self._supervisors, self._key, self._drain = supervisors, key, drain
        self._contingent = supervisors.contingent
        self._way, self._shares = Way(nodes.address, nodes.port, nodes.patience, nodes.way), nodes.shares
        numbers = [one.topology.replica for one in configs]
        self._replicas = dict(zip(numbers, supervisors.replicas, strict=True))
        self._has_started = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained: Sequence[EngineLine | None] = ()
        """Kept so that engines stay closed, see ``drain``."""

    def join(self) -> LsvError | None:
        """Join node 0, and have it use the engines until it has ended as it was told to; or what the last one of them
        has ended of.

        Raises ``EngineDied`` when it is gone, ``StartError`` where it can't be reached, ``ConfigError``.
        """
        ends, told = time.monotonic() + self._way.patience, False
        while True:
            signal.signal(signal.SIGTERM, _interrupt)  # an event loop that has ended has taken it back
            try:
                return asyncio.run(self._serve(reach(self._way, self._key, JOINING)))
            except _Held as held:
                if time.monotonic() > ends:
                    raise ConfigError(
                        f"replica {', '.join(map(str, self._replicas))}: {held} has them: every machine has replicas "
                        f"of its own, see {self._shares}",
                        param="data_parallel_start_rank",
                    ) from None
                if not told:
                    log.warning("node 0 still knows these replicas at %s; waiting until it misses them there", held)
                told = True
                time.sleep(_AGAIN_SECONDS)

    async def _serve(self, end: socket.socket) -> LsvError | None:
        try:
            line: Line[ToNode0, FromNode0] = Line(await stream_over(end), FromNode0)
            try:
                return await self._work(line)
            except LsvError as error:
                self._part(error)
                raise
            finally:
                line.close()
        except (EOFError, OSError, ValueError) as cause:
            gone = EngineDied(f"node 0 ({self._way}) is gone")
            self._part(gone)
            raise gone from cause

    def _part(self, why: LsvError) -> None:
        """Node 0 has gone, which ends engines that others have a part in."""
        if self._contingent is not None:
            self._contingent.detach(why)

    async def _work(self, line: Line[ToNode0, FromNode0]) -> LsvError | None:
        """See ``join``. Raises ``EOFError``, ``OSError`` and ``ValueError`` where node 0 does not go on."""
        line.send(Enlist(**describe(self._config), first=min(self._replicas), count=len(self._replicas)))
        work = self._obey(line), self._report(line), self._leave_when_told()
        tasks: list[asyncio.Task[LsvError | None]] = [asyncio.create_task(one) for one in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = done.pop().result()
        finally:
            await cancel((*tasks, *self._tasks))
        await line.finish(Goodbye() if error is None else Failed(error.record()))
        return error

    async def _obey(self, line: Line[ToNode0, FromNode0]) -> None:
        """Do what node 0 says until it says goodbye. Raises what it has ended with."""
        while True:
            said = await line.receive()
            if isinstance(said, Goodbye):
                log.info("node 0 has ended")
                return
            if isinstance(said, Taken):
                raise _Held(said.address)
            if isinstance(said, Welcome):
                self._start()
                if self._contingent is not None:
                    self._contingent.attach(in_loop(line.send))
            elif isinstance(said, Together) and self._contingent is not None:
                self._contingent.begin(said.replica, said.meeting)
            elif isinstance(said, Fall) and self._contingent is not None:
                self._contingent.fall(said.replica, from_record(said.error))
            elif isinstance(said, Dial) and said.replica in self._replicas:
                self._spawn(self._connect(said.replica))
            elif isinstance(said, Renew) and said.replica in self._replicas:
                self._replicas[said.replica].renew()

    def _start(self) -> None:
        log.info("node 0 (%s) takes this machine's replica %s", self._way, ", ".join(map(str, self._replicas)))
        if not self._has_started:
            self._has_started = True
            self._supervisors.start()

    async def _report(self, line: Line[ToNode0, FromNode0]) -> LsvError:
        """Tell of the engines' states as they change, until all have ended for good; why one of them has."""
        told: dict[int, supervision.Supervision] = {}
        while True:
            for number, supervisor in self._replicas.items():
                now = supervision.read(supervisor.address)
                if told.get(number) != now:
                    told[number] = now
                    line.send(Told(number, now))
            if all(one.state == "ended" for one in told.values()):
                return next(from_record(one.error) for one in told.values() if one.error is not None)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _connect(self, replica: int) -> None:
        """Connect a client of node 0 with an engine, until either goes."""
        try:
            end = await asyncio.to_thread(reach, self._way._replace(patience=_DIAL_SECONDS), self._key, replica)
            theirs = await stream_over(end)
        except (LsvError, OSError) as cause:
            log.warning("node 0 refused the connection to replica %d: %s", replica, cause)
            return
        try:
            await splice(theirs, await asyncio.open_unix_connection(str(self._replicas[replica].address)))
        except OSError:
            pass  # the engine has just ended, which node 0 is told
        finally:
            theirs[1].close()

    async def _leave_when_told(self) -> None:
        """Returns when this machine may go."""
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        await told.wait()
        log.info("this machine leaves once its requests have ended, in %g s at most", self._drain)
        try:
            draining = asyncio.gather(*map(drain, self._supervisors.addresses))
            self._drained = await asyncio.wait_for(draining, self._drain)
        except TimeoutError:
            log.warning("some requests have not ended in %g s: they fail", self._drain)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def drain(address: Path) -> EngineLine | None:
    """Have the engine that listens there take no new requests as long as what is returned is kept, and wait until all
    others have ended. None where it takes none yet, or no more.
    """
    with suppress(EOFError, OSError, ValueError, LsvError):
        line: EngineLine = Line(await asyncio.open_unix_connection(str(address)), EngineMessage)
        line.send(Hello())
        while not isinstance(said := await line.receive(), Ready | Progress):
            pass
        if isinstance(said, Ready):
            line.send(Control(0, *encode_order(Drain())))
            while not isinstance(await line.receive(), Controlled):
                pass
            return line
    return None


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
