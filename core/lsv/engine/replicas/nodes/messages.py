"""What node 0, which serves, and a machine with replicas of its server say to each other.

Each connection is opened by the machine with the replicas, and begins with the handshake. One, for ``JOINING``, is for
these messages: ``Enlist``, answered by ``Welcome``, ``Taken`` or ``Failed``; then ``Told`` goes to node 0, and orders
come from there. ``Waiting``, ``Left``, ``Together`` and ``Fall`` are of engines that start and end together. Others are
for the number of a replica: a client of node 0 talks through them to that engine; or for ``MEETING``, see
``lsv.processes.nodes.meeting``.
"""

from __future__ import annotations

import msgspec

from lsv.engine.supervision.state import Supervision
from lsv.processes.nodes.newcomer import Newcomer
from lsv_base.errors import ErrorRecord

LONGEST = 1 << 24
"""Bytes of the longest of these messages: all but the configuration are short."""


class Enlist(Newcomer, frozen=True, kw_only=True, tag=True):
    """A machine with replicas."""

    first: int
    count: int

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.count)


class Told(msgspec.Struct, frozen=True, tag=True):
    """How the engine of a replica is, whenever that has changed."""

    replica: int
    supervision: Supervision


class Waiting(msgspec.Struct, frozen=True, tag=True):
    """The engine of a replica is about to be started, once those that it computes with are."""

    replica: int


class Left(msgspec.Struct, frozen=True, tag=True):
    """The engine of a replica has ended, and with it all that it computes with."""

    replica: int
    error: ErrorRecord


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The machine has joined: its engines are to run."""


class Taken(msgspec.Struct, frozen=True, tag=True):
    """Another machine has these replicas, as far as is known: one that is lost is missed after some seconds."""

    address: str
    """The other's."""


class Dial(msgspec.Struct, frozen=True, tag=True):
    """A client wants to talk to the engine of a replica: a connection is to be made for it."""

    replica: int


class Renew(msgspec.Struct, frozen=True, tag=True):
    """Another process is to take the place of this replica's."""

    replica: int


class Together(msgspec.Struct, frozen=True, tag=True):
    """All that compute together are about to start: this machine's engine of a replica is to."""

    replica: int
    meeting: str
    """See ``Topology.meeting``."""


class Fall(msgspec.Struct, frozen=True, tag=True):
    """The engine of this replica ends, as another has that it computes with."""

    replica: int
    error: ErrorRecord


class Goodbye(msgspec.Struct, frozen=True, tag=True):
    """The server has ended as it was told to, or the machine has."""


ToNode0 = Enlist | Told | Waiting | Left | Goodbye
FromNode0 = Welcome | Taken | Dial | Renew | Together | Fall | Goodbye
