"""The stages of a pipeline, and which layers each of them has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lsv.config import Topology
from lsv_base.errors import ConfigError
from lsv_runtime.devices.communicator import Group
from lsv_runtime.pipeline.meeting import Meeting


@dataclass(frozen=True, slots=True)
class Stage:
    """One of ``count`` groups of ranks, each of which has layers of its own."""

    number: int
    count: int

    @classmethod
    def of_rank(cls, rank: int, topology: Topology) -> Stage:
        """Ranks are counted stage by stage."""
        return cls(rank // topology.tensor, topology.pipeline)

    @property
    def begins(self) -> bool:
        """Whether it has the embedding."""
        return self.number == 0

    @property
    def ends(self) -> bool:
        """Whether it has the head, and samples."""
        return self.number == self.count - 1


WHOLE = Stage(0, 1)
"""The stage that has all layers."""


def stage_groups(rank: int, topology: Topology, meeting: Meeting) -> tuple[Group, Group]:
    """The group of a rank's stage, whose ranks share each layer, and that of all ranks."""
    first = rank - rank % topology.tensor
    world = tuple(range(topology.ranks))
    mine = world[first : first + topology.tensor]
    return Group("tp", mine, rank - first, meeting.of(mine, f"tp{first}")), Group(
        "world", world, rank, meeting.of(world, "world")
    )


def check_partition(counts: Sequence[int], layers: int, stages: int) -> None:
    """Raises ``ConfigError`` where ``counts`` do not say how many of the ``layers`` each stage has."""
    if len(counts) != stages or sum(counts) != layers or min(counts) < 1:
        raise ConfigError(
            f"pipeline_layer_partition={','.join(map(str, counts))} must give each of {stages} stages "
            f"(pipeline_parallel_size) at least one layer, and {layers} in all",
            param="pipeline_layer_partition",
        )


def share_out(costs: Sequence[int], behind: int, stages: int) -> tuple[int, ...]:
    """How many layers each stage gets so that the dearest stage costs as little as can be.

    ``costs`` are those of the layers in order, ``behind`` is that of what follows them. Every stage gets at least one
    layer: raises ``ConfigError`` where there are fewer than stages.
    """
    layers = len(costs)
    if layers < stages:
        raise ConfigError(
            f"pipeline_parallel_size={stages} is more than the {layers} layers the model has",
            param="pipeline_parallel_size",
        )
    costs = [*costs[:-1], costs[-1] + behind]
    low, high = max(costs), sum(costs)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_pack(costs, middle)) <= stages else (middle + 1, high)
    counts = _pack(costs, low)
    while len(counts) < stages:
        place = next(place for place, count in enumerate(counts) if count > 1)
        counts[place : place + 1] = [1, counts[place] - 1]
    return tuple(counts)


def _pack(costs: Sequence[int], limit: int) -> list[int]:
    """How many layers stages get that each take as many as cost no more than ``limit``."""
    counts, left = list[int](), 0
    for cost in costs:
        if cost <= left:
            counts[-1] += 1
            left -= cost
        else:
            counts.append(1)
            left = limit - cost
    return counts
