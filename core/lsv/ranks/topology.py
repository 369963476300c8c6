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
    """Copies of the model that share the requests, each an engine of its own on other devices of this machine."""
    replica: int = 0
    """Which of these copies an engine runs."""
    expert: int = 1
    """Ranks that the experts of a layer are spread over: those of a stage, or 1 where each expert is cut."""
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
    def devices(self) -> int:
        """Ranks of all copies, which share the machine."""
        return self.data * self.ranks

    @property
    def first_device(self) -> int:
        """That of this copy's first rank among these."""
        return self.replica * self.ranks

    def of_replica(self, number: int) -> Topology:
        """The same for another replica."""
        return msgspec.structs.replace(self, replica=number)


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that an engine's ranks are spread over, those of a machine one after another."""

    count: int
    number: int
    """Which one this is. The engine is on the first, 0; the others only have ranks."""
    address: str
    """Of the first, where the others join it: a name or an IP address."""
    port: int
    patience: float
    """Seconds in which all have to be there."""

    def ranks(self, topology: Topology, number: int) -> range:
        """The ranks of a machine."""
        each = topology.ranks // self.count
        return range(number * each, (number + 1) * each)


class ExpertOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the experts are that ranks have whole, and when they move."""

    map: tuple[tuple[int, ...], ...] = ()
    """The rank of each expert, for each mixture of the model in its order or once for all; empty: evenly, by number."""
    interval: int = 0
    """Steps from one evening out of the ranks' load to the next; 0: experts stay where they are."""
    window: int = 0
    """The last so many of these steps are those in which tokens are counted."""
