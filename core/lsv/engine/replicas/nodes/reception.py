"""Node 0's side: machines with replicas join, are lost and join again for as long as the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, Self

from lsv.config import EngineConfig
from lsv.engine.replicas.nodes.line import Line, cancel, stream_over
from lsv.engine.replicas.nodes.messages import (
    Enlist,
    FromNode0,
    Goodbye,
    Left,
    Taken,
    Told,
    ToNode0,
    Waiting,
    Welcome,
)
from lsv.engine.replicas.nodes.rendezvous import Rendezvous
from lsv.engine.replicas.nodes.stand_in import StandIn
from lsv.engine.supervision.gang import Gang
from lsv.processes.nodes.door import Door, Guest, listen
from lsv.processes.nodes.handshake import JOINING, MEETING
from lsv.processes.nodes.newcomer import Likeness
from lsv_base.errors import ConfigError, EngineDied, LsvError, StartError, from_record
from lsv_base.processes.wire import Failed

log = logging.getLogger(__name__)

_WORD_SECONDS = 10.0
"""What a machine gets to say what it is."""
_MOST_TOLD = 16
"""Strangers that the log and the error tell of."""

HostLine = Line[FromNode0, ToNode0]


class Host(NamedTuple):
    """A machine that has joined."""

    line: HostLine
    address: str
    numbers: range
    """Of its replicas."""

    def __str__(self) -> str:
        return f"the node at {self.address} with {list_replicas(self.numbers)}"


class Reception:
    """Lets machines in that have the key, and gives their engines to ``stand_ins``, one for each replica elsewhere.

    Used as ``async with``: the door is open within the block, and machines are told of its end. Raises ``ConfigError``
    where this machine has no such address or its port is taken.
    """

    def __init__(
        self, config: EngineConfig, stand_ins: Sequence[StandIn], key: bytes, gang: Gang | None = None
    ) -> None:
        """With a ``gang``, those of it meet here."""
        assert config.replica_nodes is not None, "replicas on several machines"
        self._nodes, self._key = config.replica_nodes, key
        self._replicas = {one.number: one for one in stand_ins}
        self._rendezvous = None if gang is None else Rendezvous(gang)
        self._likeness = Likeness(config)
        self._hosts: list[Host] = []
        self._turned_away: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: Goodbye | Failed = Goodbye()
        """What machines are told at the end."""

    async def __aenter__(self) -> Self:
        where = self._nodes.address, self._nodes.port
        try:
            self._door = Door(listen(*where), self._key)
        except OSError as cause:
            raise ConfigError(
                f"{where[0]}:{where[1]} ({self._nodes.way}): the other nodes can't join here: {cause}; the address "
                "must be one of this machine's, and the port free",
                param="data_parallel_address",
            ) from cause
        for one in self._replicas.values():
            await one.open()
        log.info("waiting for %s at %s:%d", list_replicas(self._replicas), *where)
        self._spawn(self._receive_all())
        if not self._nodes.placer:
            self._spawn(self._give_up_late())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, LsvError):
            self._last = Failed(error.record())
        await cancel(self._tasks)
        if self._rendezvous is not None:
            self._rendezvous.close()
        for one in self._replicas.values():
            await one.close()
        await asyncio.to_thread(self._door.close)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _receive_all(self) -> None:
        while True:
            guest = await self._next_guest()
            if guest is None:
                continue
            if guest.purpose is None:
                self._turn_away(guest.address, "has another LSV_CLUSTER_KEY")
            elif guest.purpose == JOINING:
                self._spawn(self._join(guest))
            elif guest.purpose == MEETING and self._rendezvous is not None:
                self._spawn(self._rendezvous.receive(guest))
            elif guest.purpose in self._replicas:
                self._replicas[guest.purpose].connect(guest)
            else:
                guest.end.close()

    async def _next_guest(self) -> Guest | None:
        """As ``Door.wait``. Closes a connection that arrives while this call is being cancelled."""
        waiting = asyncio.create_task(asyncio.to_thread(self._door.wait))
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            late = await waiting
            if late is not None:
                late.end.close()
            raise

    async def _give_up_late(self) -> None:
        """A server that has never been whole does not wait for ever."""
        await asyncio.sleep(self._nodes.patience)
        missing = [one for one in self._replicas.values() if not one.comings]
        if not missing:
            return
        where, names = f"{self._nodes.address}:{self._nodes.port}", list_replicas(one.number for one in missing)
        strangers = "".join(f"; {address} {why}" for address, why in self._turned_away.items())
        local = "; 127.0.0.1 is reached from this machine alone" if self._door.host == "127.0.0.1" else ""
        late = StartError(
            f"no word from {names} after {self._nodes.patience:g} s (node_timeout): start the same command with "
            f"{self._nodes.place(missing[0].number)} on their machine, and see that it reaches {where}{local}"
            f"{strangers}"
        )
        for one in missing:
            one.give_up(late)

    def _turn_away(self, address: str, why: str) -> None:
        if self._turned_away.get(address) != why and len(self._turned_away) < _MOST_TOLD:
            log.warning("%s was turned away: it %s", address, why)
            self._turned_away[address] = why

    async def _join(self, guest: Guest) -> None:
        """Hold a machine against this one, and use its engines until it is gone."""
        try:
            line: HostLine = Line(await stream_over(guest.end), ToNode0)
        except OSError:
            return
        try:
            said = await asyncio.wait_for(line.receive(), _WORD_SECONDS)
            if isinstance(said, Enlist):
                refusal = self._refuse(said, guest.address)
                if refusal is None:
                    await self._use(Host(line, guest.address, said.numbers))
                else:
                    await line.finish(refusal)
        except asyncio.CancelledError:
            await line.finish(self._last)
            raise
        except (EOFError, OSError, ValueError, LsvError):
            pass  # it has gone again, or does not say what it has come for
        finally:
            line.close()

    def _refuse(self, said: Enlist, address: str) -> Failed | Taken | None:
        """What a machine is told with which the server can't run, or that comes a second time."""
        try:
            self._check(said)
        except ConfigError as problem:
            why = f"{list_replicas(said.numbers)} ({address}) and node 0 don't fit together: {problem.message}"
            self._turn_away(address, f"does not fit: {problem.message}")
            return Failed(ConfigError(why).record())
        for host in self._hosts:
            if set(host.numbers) & set(said.numbers):
                self._turn_away(address, f"comes with {list_replicas(said.numbers)}, and {host} is there already")
                return Taken(host.address)
        return None

    def _check(self, said: Enlist) -> None:
        """Raises ``ConfigError`` with what has to be equal and is not, and for replicas that are none of others'."""
        self._likeness.read(said)
        few = said.numbers[: len(self._replicas) + 1]
        if not few or not set(few) <= set(self._replicas):
            raise ConfigError(
                f"{list_replicas(few)} is not among those of other machines, {list_replicas(self._replicas)}: see "
                f"{self._nodes.shares} on both"
            )

    async def _use(self, host: Host) -> None:
        """Have clients use the engines of a machine until that is gone."""
        engines = [self._replicas[number] for number in host.numbers]
        self._hosts.append(host)
        try:
            for one in engines:
                one.attach(host.line.send)
            host.line.send(Welcome())
            log.info("%s is there", host)
            lost = EngineDied(f"{host} {await self._listen(host)}")
        finally:
            self._hosts.remove(host)
        log.error("%s", lost.message)
        for one in engines:
            one.detach(lost)

    async def _listen(self, host: Host) -> str:
        """Hear of engines until the machine is gone; in words, how it went."""
        ended = set[int]()
        try:
            while True:
                told = await host.line.receive()
                if isinstance(told, Goodbye):
                    return "has left"
                if not isinstance(told, Told | Waiting | Left) or told.replica not in host.numbers:
                    continue
                engine = self._replicas[told.replica]
                if isinstance(told, Waiting):
                    engine.wait()
                elif isinstance(told, Left):
                    engine.leave(from_record(told.error))
                else:
                    (ended.add if told.supervision.state == "ended" else ended.discard)(told.replica)
                    engine.tell(told.supervision, goes_on=len(ended) < len(host.numbers))
        except LsvError as error:
            return f"has ended: {error.message}"
        except (EOFError, OSError, ValueError):
            return "is lost"


def list_replicas(numbers: Iterable[int]) -> str:
    """Replicas in words."""
    return f"replica {', '.join(map(str, numbers))}"
