"""How those find each other that compute together on several machines: node 0 knows when all are there."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lsv.config import EngineConfig
from lsv.errors import EngineDied
from lsv.processes.nodes.handshake import MEETING
from lsv.processes.nodes.reaching import GREETING_SECONDS, Way, reach
from lsv.processes.peer import Peer
from lsv.settings.cluster_key import read_cluster_key

OpenAt = Callable[[str], str]
"""Given this machine's address, as it reaches node 0: where one is reached, empty for nowhere."""


class Meet(msgspec.Struct, frozen=True, tag=True):
    """Somebody wants to know how all of a group are reached."""

    start: str
    """Of the engines: ``Topology.meeting``."""
    group: str
    place: int
    """Among the ``size`` of the group."""
    size: int
    address: str
    """Where this one is reached."""


class Met(msgspec.Struct, frozen=True, tag=True):
    """Everybody has come."""

    addresses: tuple[str, ...]
    """By place."""


def meet(config: EngineConfig, group: str, place: int, size: int, open_at: OpenAt) -> tuple[str, ...]:
    """How all of a group are reached, by place, once they are there; ``open_at`` says that of this one.

    Raises ``StartError`` where node 0 can't be reached, ``EngineDied`` when it or this start of the engines is over.
    """
    nodes = config.replica_nodes
    assert nodes is not None, "replicas on several machines"
    way = Way(nodes.address, nodes.port, nodes.patience, nodes.way)
    end = reach(way, read_cluster_key(), MEETING)
    peer: Peer[Meet, Met] = Peer(end, Met)
    try:
        address = open_at(str(end.getsockname()[0]))
        peer.send(Meet(config.topology.meeting, group, place, size, address), GREETING_SECONDS)
        return peer.receive().addresses
    except (EOFError, OSError) as cause:
        raise EngineDied(f"node 0 ({way}) does not tell how other replicas are reached: it or they are gone") from cause
    finally:
        peer.channel.close()
