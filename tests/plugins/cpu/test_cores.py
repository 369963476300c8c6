"""Which cores a rank runs on, on made-up machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lsv_base.errors import ConfigError
from lsv_cpu.cores import share_cores
from lsv_cpu.machine import Machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """8 cores of two logical CPUs each, the even ones of which are on memory node 0 and the odd ones on node 1."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    devices = tmp_path / "sys/devices/system"
    for cpu in range(16):
        (devices / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (devices / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")
    for node, cpus in enumerate(("0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15")):
        (devices / f"node/node{node}").mkdir(parents=True)
        (devices / f"node/node{node}/cpulist").write_text(f"{cpus}\n")
    return Machine(tmp_path)


def limit_to(machine: Machine, cpus: int) -> None:
    for name, text in (("proc/self/cgroup", "0::/"), ("sys/fs/cgroup/cpu.max", f"{cpus}00000 100000")):
        path = machine.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.mark.row("F-451")
@pytest.mark.parametrize(
    ("ranks", "parts"),
    [
        (2, [{0, 2, 4, 6}, {1, 3, 5, 7}]),
        (4, [{0, 2}, {4, 6}, {1, 3}, {5, 7}]),
        (3, [{0, 2}, {4, 6}, {1, 3}]),
        (8, [{0}, {2}, {4}, {6}, {1}, {3}, {5}, {7}]),
        (9, [{0}, {2}, {4}, {6}, {1}, {3}, {5}, {7}, {0}]),
    ],
)
def test_ranks_get_cores_of_one_memory_node_where_they_can(machine: Machine, ranks: int, parts: list[set[int]]) -> None:
    shares = [share_cores("auto", rank, ranks, machine) for rank in range(ranks)]
    assert [share.cores for share in shares] == parts
    assert {share.threads for share in shares} == {max(1, 8 // ranks)}


def test_a_rank_alone_is_bound_to_nothing(machine: Machine) -> None:
    share = share_cores("auto", 0, 1, machine)
    assert (share.cores, share.threads) == (None, 8)


@pytest.mark.parametrize("text", ["all", "nobind"])
def test_ranks_that_are_not_bound_share_the_number_of_threads(machine: Machine, text: str) -> None:
    share = share_cores(text, 1, 2, machine)
    assert (share.cores, share.threads) == (None, 4)


def test_ranks_share_the_quota_of_a_container(machine: Machine) -> None:
    limit_to(machine, 4)
    shares = [share_cores("auto", rank, 2, machine) for rank in range(2)]
    assert [share.threads for share in shares] == [2, 2]
    assert [share.cores for share in shares] == [{0, 2, 4, 6}, {1, 3, 5, 7}]


@pytest.mark.row("F-993", "F-449")
@pytest.mark.parametrize(
    ("text", "rank", "ranks", "cores"),
    [
        ("0-3", 0, 1, {0, 1, 2, 3}),
        ("0,2, 5", 7, 1, {0, 2, 5}),
        ("0-2,6", 0, 1, {0, 1, 2, 6}),
        ("0-1|2-3", 1, 2, {2, 3}),
        ("0-1|2-3", 1, 1, {2, 3}),
        ("0-1/2-3", 0, 2, {0, 1}),
        ("0-7", 0, 2, {0, 1, 2, 3}),
        ("0-7", 1, 2, {4, 5, 6, 7}),
    ],
)
def test_what_the_user_names_wins(machine: Machine, text: str, rank: int, ranks: int, cores: set[int]) -> None:
    share = share_cores(text, rank, ranks, machine)
    assert (share.cores, share.threads) == (cores, len(cores))


@pytest.mark.parametrize(
    ("text", "rank", "message"),
    [
        ("0-1|2-3", 2, "none for rank 2"),
        ("0-19", 0, "may not use; allowed are"),
        ("3-1", 0, "may not use"),
        ("zero", 0, "not a list of cores"),
        ("0-", 0, "not a list of cores"),
        ("", 0, "not a list of cores"),
    ],
)
def test_bad_core_lists_say_what_to_write(machine: Machine, text: str, rank: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        share_cores(text, rank, 1, machine)
