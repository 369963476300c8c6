"""How members of a group on several machines find each other: node 0 collects their addresses."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lsv.config import EngineConfig
from lsv.processes.nodes.handshake import MEETING
from lsv.processes.nodes.reaching import GREETING_SECONDS, Way, reach
from lsv.settings.cluster_key import read_cluster_key
from lsv_base.errors import EngineDied
from lsv_base.processes.peer import Peer

OpenAt = Callable[[str], str]
"""Given this machine's address on the way to node 0, returns the address of this member; empty for none."""


class Meet(msgspec.Struct, frozen=True, tag=True):
    """A member of a group asks for the addresses of all members."""

    start: str
    """The start of the engines: ``Topology.meeting``."""
    group: str
    place: int
    """The member's number in the group of ``size``."""
    size: int
    address: str
    """The address of this member."""


class Met(msgspec.Struct, frozen=True, tag=True):
    """All members have asked."""

    addresses: tuple[str, ...]
    """By place."""


def meet(config: EngineConfig, group: str, place: int, size: int, open_at: OpenAt) -> tuple[str, ...]:
    """The addresses of a group by place, once all members have asked. ``open_at`` gives this member's address.

    Raises ``StartError`` if node 0 can't be reached, ``EngineDied`` if it is gone or the engines have restarted.
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
        raise EngineDied(
            f"node 0 ({way}) did not send the addresses of the other replicas: it or they are gone"
        ) from cause
    finally:
        peer.channel.close()
