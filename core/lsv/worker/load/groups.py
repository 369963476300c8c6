"""The groups of ranks that one is in."""

from __future__ import annotations

from dataclasses import dataclass

from lsv.config import EngineConfig, Topology
from lsv.nn.exchange import TokenExchange
from lsv.pipeline.link import Links, neighbours
from lsv.pipeline.meeting import Meeting
from lsv.pipeline.stage import stage_groups
from lsv.platform import Communicator, Device, Group
from lsv.worker.load.device import connect


@dataclass(frozen=True, slots=True)
class Groups:
    """None for what there is nobody for."""

    sharing: Communicator | None = None
    """The ranks that share each layer, a stage's."""
    world: Communicator | None = None
    """All ranks of this replica, where there are several stages."""
    links: Links | None = None
    """To the stages before and behind."""
    exchange: TokenExchange | None = None
    """With the ranks of this stage of all replicas, where these share experts."""

    @property
    def alone(self) -> bool:
        """Whether no other rank waits for this one in the middle of a step."""
        return self.sharing is None and self.links is None and self.exchange is None

    def close(self) -> None:
        """Leave them."""
        exchanging = None if self.exchange is None else self.exchange.communicator
        for group in (self.links, self.world, self.sharing, exchanging):
            if group is not None:
                group.close()


def join_groups(device: Device, rank: int, config: EngineConfig, meeting: Meeting) -> Groups:
    """Meet the others of a rank's groups, all of which have been tested."""
    topology = config.topology
    stage, world = stage_groups(rank, topology, meeting)
    links, everybody = None, None
    if topology.pipeline > 1:
        neighbouring = neighbours(rank, topology, meeting)
        links = Links(*(None if group is None else connect(device, group) for group in neighbouring))
        everybody = connect(device, world)
    return Groups(connect(device, stage), everybody, links, _join_replicas(device, rank, topology))


def _join_replicas(device: Device, rank: int, topology: Topology) -> TokenExchange | None:
    if not topology.shares_experts:
        return None
    stage, place = divmod(rank, topology.tensor)
    mine = topology.replica * topology.tensor + place
    group = Group("ep", tuple(range(topology.expert)), mine, f"{topology.meeting}/experts-{stage}")
    communicator = connect(device, group)
    assert communicator is not None, "several replicas share experts"
    return TokenExchange(communicator, topology.tensor, device.torch_device)
