"""How an engine's ranks are arranged: along which axes, on which machines, and what is spread over them."""

from __future__ import annotations

import msgspec


class Topology(msgspec.Struct, frozen=True):
    """How many ranks there are along each axis."""

    tensor: int = 1
    """Ranks that share each layer."""
    pipeline: int = 1
    """Stages that the layers are spread over, each of so many ranks."""
    data: int = 1
    """Copies of the model that share the requests of a server, each an engine of its own on other devices."""
    replica: int = 0
    """Which of these copies an engine runs."""
    local: tuple[int, int] | None = None
    """The first of these copies that is on this machine, and how many are; None is all of them."""
    base: int = 0
    """How many copies are before these, on servers that something else spreads requests over."""
    expert: int = 1
    """Ranks that the experts of a layer are spread over: those of its stage, in one copy or in all of them, or 1 where
    each expert is cut.
    """
    meeting: str = ""
    """Where copies meet that share experts, another place each time that they are started: a folder, or, on several
    machines, what node 0 knows them by.
    """
    layers: tuple[int, ...] = ()
    """How many layers each stage has; empty: as the costs of the layers say."""

    @property
    def ranks(self) -> int:
        """Processes that one copy of the model takes, counted stage by stage."""
        return self.tensor * self.pipeline

    @property
    def reporter(self) -> int:
        """The rank whose results count: the first of the last stage."""
        return self.ranks - self.tensor

    @property
    def shares_experts(self) -> bool:
        """Whether each copy has some of the experts, and computes steps together with the others."""
        return self.expert > self.tensor

    @property
    def here(self) -> range:
        """The copies on this machine, which share it."""
        first, count = self.local or (0, self.data)
        return range(first, first + count)

    @property
    def is_local(self) -> bool:
        """Whether this copy is on this machine."""
        return self.local is None or self.replica in self.here

    @property
    def devices(self) -> int:
        """Ranks of the copies on this machine."""
        return len(self.here) * self.ranks

    @property
    def first_device(self) -> int:
        """That of this copy's first rank among these."""
        return (self.replica - self.here.start) * self.ranks

    @property
    def number(self) -> int:
        """This copy's among those of all servers."""
        return self.base + self.replica

    @property
    def anywhere(self) -> Topology:
        """What is the same for all copies, on every machine."""
        return msgspec.structs.replace(self, replica=0, local=None, base=0, meeting="")

    def of_replica(self, number: int) -> Topology:
        """The same for another replica."""
        return msgspec.structs.replace(self, replica=number)


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that ranks are spread over: as many on each, one after another, those of a replica before those of
    the next. None has ranks of two replicas.
    """

    count: int
    """Of all replicas together."""
    number: int
    """Which one this is. The engines are on the first, 0; the others only have ranks."""
    address: str
    """Of the first, where the others join their engines: a name or an IP address."""
    port: int
    """Of the first replica's engine."""
    patience: float
    """Seconds in which all have to be there."""

    def each(self, topology: Topology) -> int:
        """How many ranks a machine has."""
        return topology.data * topology.ranks // self.count

    def replica(self, topology: Topology) -> int:
        """The one that this machine has ranks of."""
        return self.number * self.each(topology) // topology.ranks

    def ranks(self, topology: Topology, number: int) -> range:
        """The ranks of a machine, counted within their replica."""
        each = self.each(topology)
        first = number * each % topology.ranks
        return range(first, first + each)

    def of_replica(self, topology: Topology) -> range:
        """The machines that the ranks of ``topology.replica`` are on."""
        size = topology.ranks // self.each(topology)
        return range(topology.replica * size, (topology.replica + 1) * size)

    def port_of(self, topology: Topology) -> int:
        """Where machines join the engine of ``topology.replica``: each engine listens for itself."""
        return self.port + topology.replica


class ReplicaNodes(msgspec.Struct, frozen=True, kw_only=True):
    """How the machines find each other that the replicas of one server are on."""

    headless: bool
    """Whether this one serves nothing: its engines are the first one's, node 0's."""
    address: str
    """Of node 0, where the others join it: a name or an IP address."""
    port: int
    patience: float
    """Seconds in which all have to be there."""
    placer: str = ""
    """The name of the ``PlacerOffer`` by which replicas get their machines; empty where these are started with them."""
    each: int = 0
    """How many replicas every machine has, where --nnodes says so; 0 where each machine says it for itself."""

    @property
    def way(self) -> str:
        """The options that say where node 0 is."""
        return f"{'--master-addr' if self.each else '--data-parallel-address'} and --data-parallel-rpc-port"

    @property
    def shares(self) -> str:
        """The options that say which replicas a machine has."""
        return "--nnodes and --node-rank" if self.each else "--data-parallel-start-rank and --data-parallel-size-local"

    def place(self, replica: int) -> str:
        """What starts the machine of a replica, beside the options of all."""
        if self.each:
            return f"--node-rank {replica // self.each}"
        return f"--headless and --data-parallel-start-rank {replica}"


class ExpertOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the experts are that ranks have whole, and when they move."""

    map: tuple[tuple[int, ...], ...] = ()
    """The rank of each expert, for each mixture of the model in its order or once for all; empty: evenly, by number."""
    interval: int = 0
    """Steps from one evening out of the ranks' load to the next; 0: experts stay where they are."""
    window: int = 0
    """The last so many of these steps are those in which tokens are counted."""
