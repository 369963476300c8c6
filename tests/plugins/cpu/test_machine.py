"""Reading the system's files, from folders laid out like those of real machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lsv_cpu.machine import Machine, parse_cores

MIB = 1 << 20
AVX512 = "avx512f avx512bw avx512vl avx512dq"
EVERY_ISA = ["amx", "avx512_bf16", "avx512_vnni", "avx512", "avx_vnni", "avx2"]


def write(root: Path, files: dict[str, str]) -> Machine:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return Machine(root)


MEMINFO = {"proc/meminfo": "MemTotal:       4194304 kB\nMemFree:         100 kB\nMemAvailable:   3145728 kB"}


def test_memory_without_a_cgroup(tmp_path: Path) -> None:
    machine = write(tmp_path, {**MEMINFO, "proc/self/status": "Name:\tpython\nVmRSS:\t    2048 kB"})
    assert (machine.memory_limit(), machine.memory_free(), machine.memory_used()) == (4096 * MIB, 3072 * MIB, 2 * MIB)


def test_the_tightest_cgroup_above_counts_and_its_file_cache_is_free(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    machine = write(
        tmp_path,
        {
            **MEMINFO,
            "proc/self/cgroup": "0::/pod/box",
            f"{group}/pod/memory.max": str(1024 * MIB),
            f"{group}/pod/memory.current": str(700 * MIB),
            f"{group}/pod/memory.stat": f"anon 1\ninactive_file {200 * MIB}",
            f"{group}/pod/box/memory.max": "max",
            f"{group}/pod/box/memory.current": "5",
        },
    )
    assert (machine.memory_limit(), machine.memory_free()) == (1024 * MIB, 524 * MIB)


def test_version_1_of_the_hierarchy(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/box"
    machine = write(
        tmp_path,
        {
            **MEMINFO,
            "proc/self/cgroup": "5:memory:/box\n4:cpu,cpuacct:/box",
            f"{group}/memory.limit_in_bytes": str(512 * MIB),
            f"{group}/memory.usage_in_bytes": str(100 * MIB),
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
        },
    )
    assert (machine.memory_limit(), machine.memory_free()) == (512 * MIB, 412 * MIB)
    assert len(machine.physical_cores()) == 1


def test_hyper_threads_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5})
    siblings = {0: "0,4", 1: "1,5", 5: "1,5", 2: "2,6"}
    topology = {f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": s for n, s in siblings.items()}
    assert write(tmp_path, topology).physical_cores() == (0, 1, 2)


def test_a_cpu_quota_bounds_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    quota = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"}
    assert write(tmp_path, quota).physical_cores() == (0, 1)


@pytest.mark.row("F-447")
@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("fpu sse2", ()),
        ("avx2 fma f16c", ("avx2",)),
        ("avx2 fma f16c avx_vnni", ("avx_vnni", "avx2")),
        (f"avx2 fma f16c {AVX512}", ("avx512", "avx2")),
        (f"avx2 fma f16c {AVX512} avx512_vnni", ("avx512_vnni", "avx512", "avx2")),
        (f"avx2 fma f16c avx_vnni {AVX512} avx512_vnni avx512_bf16 amx_tile amx_bf16 amx_int8", tuple(EVERY_ISA)),
        (f"avx2 fma f16c avx_vnni {AVX512} avx512_vnni avx512_bf16 amx_tile", tuple(EVERY_ISA[1:])),
    ],
)
def test_instruction_sets(flags: str, found: tuple[str, ...], tmp_path: Path) -> None:
    machine = write(tmp_path, {"proc/cpuinfo": f"processor : 0\nmodel name : A CPU\nflags : {flags}", **MEMINFO})
    assert machine.instruction_sets() == found
    info = machine.device_info()
    assert info.name.startswith("A CPU (")
    assert info.detail["isa"].split() == list(found)


def test_core_lists() -> None:
    assert parse_cores("0-2,7") == {0, 1, 2, 7}
    for text in ("", "a", "1-", "-1", "1,,2"):
        with pytest.raises(ValueError):
            parse_cores(text)
