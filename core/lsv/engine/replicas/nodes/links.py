"""The connections between the engines of several machines, by which they hear of each other's steps."""

from __future__ import annotations

import socket

from lsv.config import EngineConfig
from lsv.engine.replicas.rhythm import Rhythm, open_pipes
from lsv.processes.nodes.door import Door, listen
from lsv.processes.nodes.meeting import meet
from lsv.processes.nodes.reaching import Way, reach
from lsv.settings.cluster_key import read_cluster_key

_PATIENCE = 30.0
"""Seconds in which an engine answers that has just said where it is reached."""


def open_rhythm(config: EngineConfig) -> Rhythm:
    """That of a replica which shares experts with others. Raises like ``open_links``."""
    return open_pipes(config.topology) if config.replica_nodes is None else open_links(config)


def open_links(config: EngineConfig) -> Rhythm:
    """The rhythm of a replica some of whose others are on other machines. Each is connected with each, and both ends of
    a connection have shown that they have the key.

    Raises ``StartError`` where one can't be reached, ``EngineDied`` when one is gone before it has come.
    """
    topology, key = config.topology, read_cluster_key()
    doors: list[Door] = []

    def open_at(host: str) -> str:
        doors.append(Door(listen(host, 0), key))
        return f"{host}:{doors[0].port}"

    try:
        addresses = meet(config, "engines", topology.replica, topology.data, open_at)
        ends = [_reach(address, key, topology.replica) for address in addresses[: topology.replica]]
        ends += _receive(doors[0], range(topology.replica + 1, topology.data))
    finally:
        for door in doors:
            door.close()
    every = [end.detach() for end in ends]
    return Rhythm(every, every)


def _reach(address: str, key: bytes, replica: int) -> socket.socket:
    host, _, port = address.rpartition(":")
    return reach(Way(host, int(port), _PATIENCE, "what it has said"), key, replica)


def _receive(door: Door, replicas: range) -> list[socket.socket]:
    """One connection of each of the replicas, which come when they know where."""
    found: dict[int, socket.socket] = {}
    while len(found) < len(replicas):
        guest = door.wait()
        if guest is None:
            continue
        if guest.purpose is not None and guest.purpose in replicas and guest.purpose not in found:
            found[guest.purpose] = guest.end
        else:
            guest.end.close()
    return list(found.values())
