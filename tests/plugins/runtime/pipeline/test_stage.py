"""Stages: who belongs to which, and how layers are shared out."""

from __future__ import annotations

import itertools
import random

import pytest

from lsv.config import Topology
from lsv_base.errors import ConfigError
from lsv_runtime.pipeline.link import neighbours
from lsv_runtime.pipeline.meeting import Meeting
from lsv_runtime.pipeline.stage import Stage, check_partition, share_out, stage_groups


def test_layers_are_shared_out_so_that_the_dearest_stage_costs_least() -> None:
    draw = random.Random(1)
    for _ in range(200):
        layers = draw.randint(1, 8)
        stages, behind = draw.randint(1, layers), draw.randint(0, 9)
        costs = [draw.randint(1, 9) for _ in range(layers)]
        counts = share_out(costs, behind, stages)
        assert (len(counts), sum(counts), min(counts) > 0) == (stages, layers, True)
        cuts = itertools.combinations(range(1, layers), stages - 1)
        ways = [(0, *cut, layers) for cut in cuts]
        mine = (0, *itertools.accumulate(counts))
        assert dearest(costs, behind, mine) == min(dearest(costs, behind, way) for way in ways)


def dearest(costs: list[int], behind: int, borders: tuple[int, ...]) -> int:
    sums = [sum(costs[start:stop]) for start, stop in itertools.pairwise(borders)]
    return max(*sums[:-1], sums[-1] + behind) if len(sums) > 1 else sums[0] + behind


def test_partitions_that_are_none_are_refused() -> None:
    check_partition((3, 1), 4, 2)
    for counts in ((2, 2, 0), (4, 1), (4,), (5, -1)):
        with pytest.raises(ConfigError, match="at least one layer, and 4 in all"):
            check_partition(counts, 4, 2)
    with pytest.raises(ConfigError, match="more than the 2 layers"):
        share_out([1, 1], 0, 3)


def test_ranks_are_counted_stage_by_stage() -> None:
    topology = Topology(tensor=2, pipeline=3)
    assert (topology.ranks, topology.reporter) == (6, 4)
    assert [Stage.of_rank(rank, topology).number for rank in range(6)] == [0, 0, 1, 1, 2, 2]
    group, world = stage_groups(3, topology, Meeting("/meeting"))
    assert (group.ranks, group.rank, world.ranks, world.rank) == ((2, 3), 1, (0, 1, 2, 3, 4, 5), 3)
    before, behind = neighbours(3, topology, Meeting("/meeting"))
    assert before is not None
    assert behind is not None
    assert (before.ranks, before.rank, behind.ranks, behind.rank) == ((1, 3), 1, (3, 5), 0)
    assert neighbours(1, topology, Meeting("/meeting"))[0] is None
    assert neighbours(5, topology, Meeting("/meeting"))[1] is None


def test_groups_meet_in_places_of_their_own() -> None:
    topology = Topology(tensor=2, pipeline=2)
    groups = {
        (group.axis, group.ranks): group.address
        for rank in range(4)
        for group in (
            *stage_groups(rank, topology, Meeting("/meeting")),
            *neighbours(rank, topology, Meeting("/meeting")),
        )
        if group is not None
    }
    assert len(groups) == len(set(groups.values())) == 5


def test_groups_of_one_machine_meet_there() -> None:
    topology, here = Topology(tensor=2, pipeline=2), Meeting.of_rank(3, "tcp://10.0.0.1:9", (1, 2), "/here")
    group, world = stage_groups(3, topology, here)
    before, _ = neighbours(3, topology, here)
    assert before is not None
    assert (group.address, before.address, world.address) == ("/here-tp2", "tcp://10.0.0.1:9", "tcp://10.0.0.1:9")
    alone = Meeting.of_rank(3, "tcp://10.0.0.1:9", (1, 2), "")
    assert stage_groups(3, topology, alone)[0].address == "tcp://10.0.0.1:9"
