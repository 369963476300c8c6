from __future__ import annotations

import os
from collections.abc import Mapping

import pytest
import torch

from lsv.config import OptionValue
from lsv.errors import ConfigError
from lsv.offers import PlatformOffer
from lsv.platform import Memory
from lsv.testing.platform import check_platform
from lsv_cpu import native, plugin
from lsv_cpu.machine import Machine
from lsv_cpu.platform import CpuDevice, CpuPlatform, cores_to_bind

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


def test_kvcache_space_overrides_every_rule() -> None:
    device = open_device({"cpu.threads": 1, "cpu.kvcache_space": 0.5})
    budget = device.budget(Memory(64 * GIB, 60 * GIB, GIB), 0.9)
    device.close()
    assert budget.kv == GIB // 2
    assert "kvcache_space=0.5 GiB" in budget.why


@pytest.mark.parametrize(
    ("text", "rank", "cores"),
    [
        ("all", 3, None),
        ("0-3", 0, {0, 1, 2, 3}),
        ("0,2, 5", 7, {0, 2, 5}),
        ("0-2,6", 0, {0, 1, 2, 6}),
        ("0-1|2-3", 1, {2, 3}),
        ("0-1/2-3", 0, {0, 1}),
    ],
)
def test_core_lists(text: str, rank: int, cores: set[int] | None) -> None:
    assert cores_to_bind(text, rank, frozenset(range(8))) == cores


@pytest.mark.parametrize(
    ("text", "rank", "message"),
    [
        ("0-1|2-3", 2, "none for rank 2"),
        ("0-9", 0, "may not use; allowed are"),
        ("3-1", 0, "may not use"),
        ("zero", 0, "not a list of cores"),
        ("0-", 0, "not a list of cores"),
        ("", 0, "not a list of cores"),
    ],
)
def test_bad_core_lists_say_what_to_write(text: str, rank: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cores_to_bind(text, rank, frozenset(range(8)))


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
