"""What the operating system says about this machine: cores, instruction sets, memory limits. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lsv.capabilities import DeviceInfo

_AVX2 = {"avx2", "fma", "f16c"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
_VNNI = _AVX512 | {"avx512_vnni"}
_BF16 = _VNNI | {"avx512_bf16"}
_FLAGS_OF_ISA = {
    "amx": _BF16 | {"amx_tile", "amx_bf16", "amx_int8"},
    "avx512_bf16": _BF16,
    "avx512_vnni": _VNNI,
    "avx512": _AVX512,
    "avx_vnni": _AVX2 | {"avx_vnni"},
    "avx2": _AVX2,
}
INSTRUCTION_SETS = tuple(_FLAGS_OF_ISA)
"""Those that native kernels support, the most recent first."""


class Machine:
    """Reads files below ``root``; tests use a folder of their own."""

    def __init__(self, root: str | Path = "/") -> None:
        self.root = Path(root)

    def device_info(self) -> DeviceInfo:
        cores = len(self.physical_cores())
        detail = {"cores": str(cores), "threads": str(len(self.allowed())), "isa": " ".join(self.instruction_sets())}
        return DeviceInfo(0, f"{self.model_name()} ({cores} cores)", self.memory_limit(), detail)

    def model_name(self) -> str:
        return next((value for key, value in self._cpuinfo() if key == "model name"), "CPU")

    def flags(self) -> frozenset[str]:
        found = (value for key, value in self._cpuinfo() if key in ("flags", "Features"))
        return frozenset(next(found, "").split())

    def instruction_sets(self) -> tuple[str, ...]:
        """The ones that native kernels support and this machine has, the most recent first."""
        flags = self.flags()
        return tuple(isa for isa, needed in _FLAGS_OF_ISA.items() if needed <= flags)

    def runnable(self, isa: str) -> str:
        """``isa`` itself, or what emulates it where this machine lacks it."""
        lacking = set(INSTRUCTION_SETS).difference(self.instruction_sets())
        return self.emulation(isa) if isa in lacking else isa

    def emulation(self, isa: str) -> str:
        """What emulates ``isa``, any but AVX2. Tiles alone are emulated where the machine has the rest."""
        if isa == "amx" and "avx512_bf16" not in self.instruction_sets():
            return "amx_and_avx512_emulated"
        return f"{isa}_emulated"

    def allowed(self) -> frozenset[int]:
        """The logical CPUs this process may run on."""
        return frozenset(os.sched_getaffinity(0))

    def cores(self) -> tuple[int, ...]:
        """One allowed logical CPU of each core, those of a memory node side by side."""
        first_of_core: dict[str, int] = {}
        for cpu in sorted(self.allowed()):
            topology = self.root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            first_of_core.setdefault(_read(topology) or str(cpu), cpu)
        node_of = self._nodes()
        return tuple(sorted(first_of_core.values(), key=lambda cpu: (node_of.get(cpu, 0), cpu)))

    def physical_cores(self) -> tuple[int, ...]:
        """The ``cores``, as many as the cgroup's CPU quota lets run at once."""
        cores = self.cores()
        return cores[: self._cpu_quota() or len(cores)]

    def memory_limit(self) -> int:
        """Bytes this process may use: the machine's memory, or less if a cgroup limits it."""
        return min([self._meminfo("MemTotal"), *(limit for limit, _ in self._memory_cgroups())])

    def memory_free(self) -> int:
        """Bytes that can still be allocated without swapping or exceeding a cgroup's limit."""
        return max(0, min([self._meminfo("MemAvailable"), *(limit - used for limit, used in self._memory_cgroups())]))

    def memory_used(self) -> int:
        """Resident bytes of this process."""
        for line in _read(self.root / "proc/self/status").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0

    def _cpuinfo(self) -> Iterator[tuple[str, str]]:
        for line in _read(self.root / "proc/cpuinfo").splitlines():
            key, _, value = line.partition(":")
            yield key.strip(), value.strip()

    def _nodes(self) -> dict[int, int]:
        """The memory node of each logical CPU."""
        folders = (self.root / "sys/devices/system/node").glob("node[0-9]*")
        lists = {int(folder.name.removeprefix("node")): _read(folder / "cpulist") for folder in folders}
        return {cpu: node for node, text in lists.items() if text for cpu in parse_cores(text)}

    def _meminfo(self, name: str) -> int:
        for line in _read(self.root / "proc/meminfo").splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        return 0

    def _memory_cgroups(self) -> Iterator[tuple[int, int]]:
        """(limit, bytes used without the file cache) of each cgroup above this process that limits memory."""
        for folder in self._cgroups("memory"):
            for limit_file, used_file in (
                ("memory.max", "memory.current"),
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            ):
                limit = _read(folder / limit_file)
                if limit.isdigit():
                    yield int(limit), int(_read(folder / used_file) or 0) - _file_cache(folder)

    def _cpu_quota(self) -> int:
        """Whole CPUs that the tightest cgroup grants, at least 1; 0 if none limits them."""
        quotas = []
        for folder in self._cgroups("cpu"):
            quota, _, period = _read(folder / "cpu.max").partition(" ")
            quota, period = (
                (quota, period) if period else (_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))
            )
            if quota.isdigit() and period.isdigit():
                quotas.append(max(1, int(quota) // int(period)))
        return min(quotas, default=0)

    def _cgroups(self, controller: str) -> Iterator[Path]:
        """Folders of this process's cgroup and those above it, for version 2 and 1 of the hierarchy."""
        mount = self.root / "sys/fs/cgroup"
        for line in _read(self.root / "proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = mount / controller if controllers else mount
            folder = top / path.strip("/")
            yield from (place for place in (folder, *folder.parents) if place == top or top in place.parents)


def parse_cores(text: str) -> frozenset[int]:
    """``"0-3,8"`` → {0, 1, 2, 3, 8}; raises ``ValueError`` for anything else."""
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        cores.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(cores)


def _file_cache(cgroup: Path) -> int:
    for line in _read(cgroup / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
