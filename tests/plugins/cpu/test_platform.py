from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from lsv.config import OptionValue
from lsv.offers import PlatformOffer
from lsv_base.errors import ConfigError
from lsv_cpu import native, plugin
from lsv_cpu.cores import Share
from lsv_cpu.machine import Machine
from lsv_cpu.platform import CpuDevice, CpuPlatform
from lsv_runtime.devices.device import Memory
from lsv_testing.platform import check_platform

GIB = 1 << 30


def test_conforms() -> None:
    (offer,) = plugin.lsv_platforms()
    assert isinstance(offer, PlatformOffer)
    check_platform(offer, {"cpu.threads": 1})


def open_device(options: Mapping[str, OptionValue]) -> CpuDevice:
    device = CpuPlatform().open(0, options)
    assert isinstance(device, CpuDevice)
    return device


@pytest.mark.parametrize(
    ("memory", "share", "kv", "why"),
    [
        (Memory(8 * GIB, 8 * GIB, GIB), None, 2 * GIB, "a quarter of the memory limit of 8.0 GiB"),
        (Memory(64 * GIB, 60 * GIB, GIB), None, 4 * GIB, "min(4 GiB"),
        (Memory(64 * GIB, 3 * GIB, GIB), None, 3 * GIB, "all that is free"),
        (Memory(64 * GIB, 60 * GIB, 10 * GIB), 0.5, 22 * GIB, "0.5 of the memory limit of 64.0 GiB, less the 10.0 GiB"),
        (Memory(64 * GIB, 60 * GIB, 40 * GIB), 0.5, 0, "less the 40.0 GiB"),
    ],
)
def test_budget_rules(memory: Memory, share: float | None, kv: int, why: str) -> None:
    device = open_device({"cpu.threads": 1})
    budget = device.budget(memory, share)
    device.close()
    assert budget.kv == kv
    assert why in budget.why


@pytest.mark.row("F-398", "F-833", "F-448")
def test_kvcache_space_overrides_every_rule() -> None:
    device = open_device({"cpu.threads": 1, "cpu.kvcache_space": 0.5})
    budget = device.budget(Memory(64 * GIB, 60 * GIB, GIB), 0.9)
    device.close()
    assert budget.kv == GIB // 2
    assert "kvcache_space=0.5 GiB" in budget.why


@pytest.mark.row("F-251")
def test_ranks_plan_no_more_than_there_is_and_is_free(tmp_path: Path) -> None:
    meminfo = f"MemTotal: {24 << 20} kB\nMemAvailable: {20 << 20} kB\n"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(meminfo)
    device = CpuDevice(Machine(tmp_path), Share(None, 1), threads=1, kv_gib=0.0, ranks=2)
    weights = 3 * GIB
    try:
        memory = device.memory()
        assert (memory.total, memory.free) == (12 * GIB, 10 * GIB)
        planned = device.budget(Memory(memory.total, memory.free - weights, memory.used + weights), 0.9)
        assert 2 * (planned.kv + weights) <= 20 * GIB
        assert (
            "all that is free, which is less than 0.9 of the memory limit of 12.0 GiB for each of 2 ranks"
            in planned.why
        )
        assert device.budget(Memory(memory.total, memory.free, 0), None).kv == 3 * GIB
    finally:
        device.close()


@pytest.mark.row("F-251")
def test_a_share_of_the_memory_is_no_more_than_is_free() -> None:
    device = open_device({"cpu.threads": 1})
    budget = device.budget(Memory(64 * GIB, 5 * GIB, GIB), 0.9)
    device.close()
    assert budget.kv == 5 * GIB
    assert "all that is free, which is less than 0.9" in budget.why


@pytest.mark.row("F-451")
def test_ranks_that_share_this_machine_share_its_cores() -> None:
    before, ranks = os.sched_getaffinity(0), 2
    if len(Machine().cores()) < ranks:
        pytest.skip("this machine has one core")
    bound = []
    for rank in range(ranks):
        device = CpuPlatform().open_rank(rank, ranks, {})
        library = native.library()
        assert library is not None
        bound.append(os.sched_getaffinity(0))
        assert library.lsv_team_size() <= len(bound[-1])
        device.close()
    assert not bound[0] & bound[1]
    assert bound[0] | bound[1] <= before


def test_opening_binds_and_closing_releases() -> None:
    before = os.sched_getaffinity(0), torch.get_num_threads()
    core = min(before[0])
    device = open_device({"cpu.bind": str(core)})
    assert os.sched_getaffinity(0) == {core}
    assert torch.get_num_threads() == 1
    device.close()
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before


def test_threads_are_the_physical_cores_unless_told() -> None:
    for options, threads in (({}, len(Machine().physical_cores())), ({"cpu.threads": 3}, 3)):
        device = open_device(options)
        library = native.library()
        assert library is not None
        assert (library.lsv_team_size(), torch.get_num_threads()) == (threads, 1)
        device.close()


def test_torch_has_the_threads_where_there_is_no_native_code() -> None:
    device = open_device({"cpu.native": "off", "cpu.threads": 3})
    assert torch.get_num_threads() == 3
    device.close()
    native.select()


@pytest.mark.row("F-447")
def test_an_instruction_set_the_machine_lacks_is_refused() -> None:
    lacking = [isa for isa in ("avx2", "avx512", "amx") if isa not in Machine().instruction_sets()]
    if not lacking:
        pytest.skip("this machine has every instruction set there is a setting for")
    with pytest.raises(ConfigError, match=f"cpu.isa={lacking[0]}, but this machine has"):
        CpuPlatform().open(0, {"cpu.isa": lacking[0]})


def test_options_reach_the_native_code() -> None:
    open_device({"cpu.native": "off", "cpu.threads": 1}).close()
    assert native.library() is None
    open_device({"cpu.native": "auto", "cpu.threads": 1}).close()
    assert native.library() is not None
    native.select()
