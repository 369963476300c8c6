"""The engine's side of joining: a door that is open until all machines and their ranks are there."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from lsv.config import EngineConfig, Nodes
from lsv.engine.executor import ReportProgress
from lsv.processes.nodes.door import Door, Guest, listen
from lsv.processes.nodes.handshake import JOINING
from lsv.processes.nodes.newcomer import Likeness
from lsv_base.errors import ConfigError, EngineDied, LsvError, StartError
from lsv_base.processes.peer import Peer
from lsv_base.processes.wire import Failed
from lsv_runtime.worker.nodes.messages import Answer, Goodbye, Join, Welcome

log = logging.getLogger(__name__)

_WORD_SECONDS = 10.0
_LAST_SECONDS = 2.0
"""What a machine gets to take in why it may go."""
_MOST_TOLD = 16
"""Strangers that the log and the error tell of."""


class Member(Peer[Answer, Join]):
    """A machine that has joined."""

    def __init__(self, end: socket.socket, address: str) -> None:
        super().__init__(end, Join)
        self.address = address
        self.joined: Join
        self.config: EngineConfig

    def __str__(self) -> str:
        return f" on node {self.joined.number} ({self.address})"

    def dismiss(self, last: Answer | Failed) -> None:
        """Tell it why it may go, and close the connection."""
        with suppress(OSError, TimeoutError):
            self.channel.send(last, _LAST_SECONDS)  # type: ignore[arg-type]
        self.channel.close()


class Gathering:
    """Collects the machines of a replica, then the connections of their ranks. ``close`` shuts the door.

    Raises ``ConfigError`` where the first machine has no such address or its port is taken.
    """

    def __init__(self, config: EngineConfig, nodes: Nodes, key: bytes, progress: ReportProgress) -> None:
        """``progress`` is told every moment whom the engine waits for."""
        self._config, self._nodes, self._progress = config, nodes, progress
        self._others = [number for number in nodes.of_replica(config.topology) if number != nodes.number]
        self._port = nodes.port_of(config.topology)
        self._likeness = Likeness(config)
        self.members: dict[int, Member] = {}
        self._ranks: dict[int, socket.socket] = {}
        self._turned_away: dict[str, str] = {}
        limits = (nodes.patience, "node_timeout"), (0.9 * config.load_timeout, "load_timeout")
        self._patience, self._limit = min(limits)
        self._deadline = time.monotonic() + self._patience
        try:
            self._door = Door(listen(nodes.address, self._port), key)
        except OSError as cause:
            raise ConfigError(
                f"master_addr={nodes.address}, master_port={self._port}: the other nodes can't join here: {cause}; "
                "the address must be one of this machine's, and the port free",
                param="master_addr",
            ) from cause

    @property
    def host(self) -> str:
        """The address that the door is at."""
        return self._door.host

    def await_members(self) -> None:
        """Wait for every machine. One that does not fit is turned away where there are other replicas.

        Raises ``StartError`` when one is late, ``ConfigError`` for one that does not fit.
        """
        log.info(
            "waiting for %s of %d at %s:%d", _list_nodes(self._others), self._nodes.count, self._nodes.address,
            self._port,
        )  # fmt: skip
        self._admit_until(lambda: [number for number in self._others if number not in self.members])

    def await_ranks(self) -> dict[int, socket.socket]:
        """Have the machines start their ranks, and wait for these; by rank, their connections."""
        for number, member in self.members.items():
            ranks = tuple(self._nodes.ranks(self._config.topology, number))
            try:
                member.send(Welcome(ranks), _WORD_SECONDS)
            except OSError:
                raise _gone(number, member) from None
            log.info("rank %s%s", " and ".join(map(str, ranks)), member)
        self._admit_until(lambda: [number for number in self.members if self._lacks(number)])
        self._progress("starting", 0, 0)
        return self._ranks

    def close(self) -> None:
        self._door.close()

    def _lacks(self, number: int) -> bool:
        return any(rank not in self._ranks for rank in self._nodes.ranks(self._config.topology, number))

    def _admit_until(self, missing: Callable[[], list[int]]) -> None:
        while numbers := missing():
            if time.monotonic() > self._deadline:
                raise self._late(numbers)
            there = len(self._others) - len(numbers)
            self._progress(f"waiting for {_list_nodes(numbers)}", there, len(self._others))
            self._check_members()
            guest = self._door.wait()
            if guest is not None:
                self._receive(guest)

    def _late(self, numbers: list[int]) -> StartError:
        strangers = "".join(f"; {address} {why}" for address, why in self._turned_away.items())
        local = "; 127.0.0.1 is reached from this machine alone" if self.host == "127.0.0.1" else ""
        return StartError(
            f"no word from {_list_nodes(numbers)} of {self._nodes.count} after {self._patience:g} s "
            f"({self._limit}): start there the same command with --node-rank {numbers[0]}, and see that it reaches "
            f"{self._nodes.address}:{self._port}{local}{strangers}"
        )

    def _check_members(self) -> None:
        """Raises ``EngineDied`` for a machine that has gone meanwhile, or what it says of its end."""
        for number, member in self.members.items():
            if member.channel.ready:
                try:
                    member.receive(0.0)
                except TimeoutError:
                    continue  # the rest of what it says is on its way
                except (EOFError, ValueError):
                    raise _gone(number, member) from None

    def _receive(self, guest: Guest) -> None:
        if guest.purpose is None:
            self._turn_away(guest.address, "has another LSV_CLUSTER_KEY")
        elif guest.purpose == JOINING:
            self._join(Member(guest.end, guest.address))
        elif guest.purpose in self._ranks or guest.purpose >= self._config.topology.ranks:
            guest.end.close()
        else:
            self._ranks[guest.purpose] = guest.end

    def _turn_away(self, address: str, why: str) -> None:
        if self._turned_away.get(address) != why and len(self._turned_away) < _MOST_TOLD:
            log.warning("%s was turned away: it %s", address, why)
            self._turned_away[address] = why

    def _join(self, member: Member) -> None:
        """Raises ``ConfigError`` for a machine with which the only engine could not run; it is told, too."""
        try:
            member.joined = member.receive(_WORD_SECONDS)
        except (EOFError, OSError, ValueError, LsvError):
            member.channel.close()
            return
        number = member.joined.number
        there = self.members.get(number)
        if there is not None:
            twice = f"node {number} is there already ({there.address}): every machine has a --node-rank of its own"
            self._turn_away(member.address, f"says that it is node {number}, which is there already")
            member.dismiss(Failed(ConfigError(twice, param="node_rank").record()))
            return
        try:
            self._check(member)
        except ConfigError as problem:
            error = ConfigError(f"node {number} ({member.address}) and node 0 don't fit together: {problem.message}")
            member.dismiss(Failed(error.record()))
            if self._config.topology.data == 1:
                raise error from None
            self._turn_away(member.address, f"does not fit: {problem.message}")  # others may be serving
            return
        self.members[number] = member
        log.info("node %d is there (%s)", number, member.address)

    def _check(self, member: Member) -> None:
        """Raises ``ConfigError`` with what has to be equal and is not."""
        joined, nodes = member.joined, self._nodes
        member.config = self._likeness.read(joined)
        if joined.count != nodes.count or joined.number not in self._others:
            raise ConfigError(
                f"it is number {joined.number} of {joined.count} machines there, and {_list_nodes(self._others)} of "
                f"{nodes.count} is waited for here"
            )


def _gone(number: int, member: Member) -> EngineDied:
    return EngineDied(f"node {number} ({member.address}) is gone before the model was loaded")


def _list_nodes(numbers: list[int]) -> str:
    return f"node {', '.join(map(str, numbers))}"


def dismiss_all(members: dict[int, Member], error: LsvError | None = None) -> None:
    """Tell machines that the engine has ended, and by which error if it was one."""
    for member in members.values():
        member.dismiss(Goodbye() if error is None else Failed(error.record()))
    members.clear()
