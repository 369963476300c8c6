"""The cpu platform: one device, bound to cores, with its own rule for the memory of the KV cache."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lsv.capabilities import Capabilities, DeviceInfo
from lsv.config import OptionValue
from lsv.errors import ConfigError
from lsv.platform import Budget, Communicator, Device, Group, Memory, Platform
from lsv_cpu.machine import Machine, parse_cores

if TYPE_CHECKING:
    import torch

_GIB = 1 << 30


class CpuPlatform(Platform):
    name = "cpu"
    attention: Sequence[str] = ("cpu-paged",)

    def devices(self) -> Sequence[DeviceInfo]:
        return (Machine().device_info(),)

    def capabilities(self, info: DeviceInfo) -> Capabilities:
        return Capabilities(
            dtypes=("bfloat16", "float32", "float16"),
            kv_dtypes=("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"),
            mixed_batches=True,
        )

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        """``index`` is the rank of this process on the machine: it selects the list of cores in ``cpu.bind``."""
        from lsv_cpu import native

        cores = cores_to_bind(str(options.get("cpu.bind") or "all"), index, Machine().allowed())
        cache = options.get("cpu.cache_dir")
        native.select(
            str(options.get("cpu.isa") or "auto"),
            enabled=options.get("cpu.native") != "off",
            cache_dir=Path(str(cache)) if cache else None,
        )
        return CpuDevice(
            Machine(),
            cores,
            threads=int(options.get("cpu.threads") or 0),
            kv_gib=float(options.get("cpu.kvcache_space") or 0),
        )


def cores_to_bind(text: str, rank: int, allowed: frozenset[int]) -> frozenset[int] | None:
    """The logical CPUs of one rank; None for ``"all"``, which binds nothing.

    The lists of ranks are separated by ``|`` or ``/``. Raises ``ConfigError``.
    """
    if text == "all":
        return None
    lists = text.replace("/", "|").split("|")
    if len(lists) > 1 and rank >= len(lists):
        raise ConfigError(f"cpu.bind={text} has {len(lists)} lists, none for rank {rank}: add one", param="cpu.bind")
    try:
        cores = parse_cores(lists[rank if len(lists) > 1 else 0])
    except ValueError:
        raise ConfigError(
            f'cpu.bind={text} is not a list of cores: write "all", 0-31, 0,1,2 or, one list per rank, 0-31|32-63',
            param="cpu.bind",
        ) from None
    if not cores or not cores <= allowed:
        raise ConfigError(
            f"cpu.bind={text} names cores that this process may not use; allowed are {sorted(allowed)}",
            param="cpu.bind",
        )
    return cores


class CpuDevice(Device):
    """The cores and memory this process may use. Binds the calling thread, and so all compute threads it starts.

    Native kernels have their own thread team. The few ops left to torch then run on one thread: two teams that spin
    while they wait for work would compete for the cores.
    """

    def __init__(self, machine: Machine, cores: frozenset[int] | None, *, threads: int, kv_gib: float) -> None:
        import torch

        from lsv_cpu.team import set_team

        self._machine, self._kv_gib = machine, kv_gib
        self._before = (machine.allowed(), torch.get_num_threads())
        if cores is not None:
            os.sched_setaffinity(0, cores)
        threads = threads or len(cores or machine.physical_cores())
        self._set_torch_threads = torch.set_num_threads
        self._set_torch_threads(1 if set_team(threads, cores) else threads)
        self.info: DeviceInfo = machine.device_info()
        self.torch_device: torch.device = torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(self._machine.memory_limit(), self._machine.memory_free(), self._machine.memory_used())

    def budget(self, memory: Memory, share: float | None) -> Budget:
        """``cpu.kvcache_space``, or what ``share`` of the limit leaves, or min(4 GiB, a quarter of the limit)."""
        if self._kv_gib > 0:
            return Budget(int(self._kv_gib * _GIB), why=f"cpu.kvcache_space={self._kv_gib:g} GiB")
        limit = f"the memory limit of {memory.total / _GIB:.1f} GiB"
        if share is not None:
            left = max(0, int(share * memory.total) - memory.used)
            return Budget(left, why=f"{share:g} of {limit}, less the {memory.used / _GIB:.1f} GiB in use")
        kv = min(4 * _GIB, memory.total // 4)
        if memory.free < kv:
            return Budget(max(0, memory.free), why=f"all that is free of {limit}")
        return Budget(kv, why=f"min(4 GiB, a quarter of {limit})")

    def release_cache(self) -> None:
        """Have malloc return its free memory to the system; does nothing if the C library has no such call."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

    def communicator(self, group: Group) -> Communicator | None:
        if group.size == 1:
            return None
        from lsv.devices.collectives import BackendCommunicator, gloo

        return BackendCommunicator(group, gloo, self.torch_device)

    def close(self) -> None:
        cores, threads = self._before
        os.sched_setaffinity(0, cores)
        self._set_torch_threads(threads)
