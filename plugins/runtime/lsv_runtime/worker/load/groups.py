"""The groups of ranks that one is in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor

from lsv.config import EngineConfig
from lsv.processes.nodes.meeting import meet
from lsv_runtime.devices.collectives import SERVED, BackendCommunicator, gloo_for, serve_store
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.devices.device import Device
from lsv_runtime.nn.exchange import TokenExchange, others_named
from lsv_runtime.pipeline.link import Links, neighbours
from lsv_runtime.pipeline.meeting import Meeting
from lsv_runtime.pipeline.stage import stage_groups
from lsv_runtime.worker.load.device import connect


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
    store: Any = None
    """Where the ranks meet that the exchange is with, if it is this one's and has to be kept."""

    @property
    def alone(self) -> bool:
        """Whether no other rank waits for this one in the middle of a step."""
        return self.sharing is None and self.links is None and self.exchange is None

    @property
    def spread(self) -> Communicator | None:
        """The ranks that experts are spread over."""
        return self.sharing if self.exchange is None else self.exchange.communicator

    def agree(self, tokens: Tensor) -> Tensor:
        """Rank 0's tokens. All ranks have the same logits and draw alike; this makes sure that they never diverge."""
        return tokens if self.sharing is None else self.sharing.broadcast(tokens.contiguous())

    def close(self) -> None:
        """Leave them."""
        for group in (self.links, self.world, self.sharing, self.exchange):
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
    return Groups(connect(device, stage), everybody, links, *_join_replicas(device, rank, config))


def _join_replicas(device: Device, rank: int, config: EngineConfig) -> tuple[TokenExchange | None, Any]:
    """The last two of ``Groups``."""
    topology = config.topology
    if not topology.shares_experts:
        return None, None
    stage, place = divmod(rank, topology.tensor)
    mine, name = topology.replica * topology.tensor + place, f"experts-{stage}"
    store, address = None, topology.meeting
    if config.replica_nodes is not None:
        store, address = _meet_replicas(config, name, mine)
    elif not address.startswith(SERVED):
        address = f"{address}/{name}"
    first = stage * topology.expert  # a store is for the groups of all stages, which it tells apart by their ranks
    group = Group("ep", tuple(range(first, first + topology.expert)), mine, address)
    with others_named():
        communicator = connect(device, group)
        assert communicator is not None, "several replicas share experts"
        hosts = _connect_hosts(group) if device.asynchronous else None
    return TokenExchange(communicator, topology.tensor, device.torch_device, hosts), store


def _connect_hosts(group: Group) -> Communicator:
    """The processors of the ranks of a group."""
    address = group.address if group.address.startswith(SERVED) else f"{group.address}-hosts"
    hosts = msgspec.structs.replace(group, axis="hosts", address=address)
    communicator = BackendCommunicator(hosts, gloo_for(hosts), torch.device("cpu"))
    communicator.self_test()
    return communicator


def _meet_replicas(config: EngineConfig, name: str, mine: int) -> tuple[Any, str]:
    """Where ranks of several machines meet: in a store of the first one's, who keeps it."""
    stores: list[Any] = []

    def open_at(host: str) -> str:
        if mine > 0:
            return ""
        store, address = serve_store(host)
        stores.append(store)
        return address

    addresses = meet(config, name, mine, config.topology.expert, open_at)
    return stores, addresses[0]
