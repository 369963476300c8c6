"""The cpu platform: one device, bound to cores, with its own rule for the memory of the KV cache."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lsv.capabilities import Capabilities, DeviceInfo
from lsv.config import OptionValue
from lsv.media.shared import SUPPORTED
from lsv.platform import Platform
from lsv_base.errors import ConfigError
from lsv_cpu.cores import Share, share_cores
from lsv_cpu.machine import INSTRUCTION_SETS, Machine
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.devices.device import Budget, Device, Memory

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

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

    def _instruction_set(self, options: Mapping[str, OptionValue]) -> str:
        """What the native kernels are built for: a value of ``cpu.isa``, or the name of an emulation."""
        return str(options.get("cpu.isa") or "auto")

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        """``index`` selects the list of cores in ``cpu.bind``, if there are several."""
        return self.open_rank(index, 1, options)

    def open_rank(self, rank: int, ranks: int, options: Mapping[str, OptionValue], first: int = 0) -> Device:
        """All ranks are on the one device there is, and each gets its part of the cores and the memory."""
        from lsv_cpu import native

        share = share_cores(str(options.get("cpu.bind") or "auto"), first + rank, ranks, Machine())
        if ranks > 1:
            log.info("rank %d of %d runs %s", rank, ranks, share)
        cache = options.get("cpu.cache_dir")
        native.select(
            self._instruction_set(options),
            enabled=options.get("cpu.native") != "off",
            cache_dir=Path(str(cache)) if cache else None,
        )
        return CpuDevice(
            Machine(),
            share,
            threads=int(options.get("cpu.threads") or 0),
            kv_gib=float(options.get("cpu.kvcache_space") or 0),
            ranks=ranks,
        )


class EmulatedCpuPlatform(CpuPlatform):
    """The same with native kernels for ``cpu.isa``, by default the newest, where the machine lacks the instructions.

    They run in terms of older ones, to the same bits (``native/emulated``). Speeds mean nothing.
    """

    def emulated_devices(self, options: Mapping[str, OptionValue]) -> Sequence[DeviceInfo]:
        self._instruction_set(options)
        return self.devices()

    def _instruction_set(self, options: Mapping[str, OptionValue]) -> str:
        """Raises ``ConfigError`` on a machine that can't emulate it."""
        machine, isa = Machine(), super()._instruction_set(options)
        isa = INSTRUCTION_SETS[0] if isa == "auto" else isa
        found = machine.runnable(isa)
        if found != isa and "avx2" not in machine.instruction_sets():
            raise ConfigError(
                f"cpu.isa={isa} is emulated with AVX2, which this machine lacks: leave --emulate out", param="emulate"
            )
        return found


class CpuDevice(Device):
    """One rank's part of the cores and memory that this process may use. Binds the calling thread, and so all compute
    threads it starts.

    Native kernels have their own thread team. The few ops left to torch then run on one thread: two teams that spin
    while they wait for work would compete for the cores.
    """

    shares_host = True

    def __init__(self, machine: Machine, share: Share, *, threads: int, kv_gib: float, ranks: int) -> None:
        import torch

        from lsv_cpu.team import set_team

        self._machine, self._kv_gib, self._ranks = machine, kv_gib, ranks
        self._before = (machine.allowed(), torch.get_num_threads())
        if share.cores is not None:
            os.sched_setaffinity(0, share.cores)
        threads = threads or share.threads
        self._set_torch_threads = torch.set_num_threads
        self._set_torch_threads(1 if set_team(threads, share.cores) else threads)
        self.info: DeviceInfo = machine.device_info()
        self.torch_device: torch.device = torch.device("cpu")

    def memory(self) -> Memory:
        """This rank's part of what there is and of what is free: all ranks hold as much."""
        total, free = self._machine.memory_limit() // self._ranks, self._machine.memory_free() // self._ranks
        return Memory(total, min(total, free), min(total, self._machine.memory_used()))

    def budget(self, memory: Memory, share: float | None) -> Budget:
        """``cpu.kvcache_space``, or what ``share`` of the limit leaves, or min(4 GiB, a quarter of the limit); of the
        latter two no more than is free.
        """
        if self._kv_gib > 0:
            return Budget(int(self._kv_gib * _GIB), why=f"cpu.kvcache_space={self._kv_gib:g} GiB")
        limit = f"the memory limit of {memory.total / _GIB:.1f} GiB"
        if self._ranks > 1:
            limit += f" for each of {self._ranks} ranks"
        if share is None:
            kv, why = min(4 * _GIB, memory.total // 4), f"min(4 GiB, a quarter of {limit})"
        else:
            kv = int(share * memory.total) - memory.used
            why = f"{share:g} of {limit}, less the {memory.used / _GIB:.1f} GiB in use"
        if memory.free < kv:
            kv, why = memory.free, f"all that is free, which is less than {why}"
        return Budget(max(0, kv), why=why)

    def release_cache(self) -> None:
        """Have malloc return its free memory to the system; does nothing if the C library has no such call."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

    def communicator(self, group: Group) -> Communicator | None:
        """Memory that the ranks share, where they meet at a file and there is native code; else sockets.

        Stages wait for each other for as long as one of them computes, so they sleep at a socket: in shared memory,
        which is for ranks that come at about the same time, they would spin, and take the cores of who has work.
        """
        if group.size == 1:
            return None
        from lsv_cpu import native
        from lsv_cpu.communicator import SharedCommunicator
        from lsv_runtime.devices.collectives import BackendCommunicator, gloo_for

        library = native.library() if SUPPORTED and group.axis != "pp" and group.address.startswith("/") else None
        if library is None:
            return BackendCommunicator(group, gloo_for(group), self.torch_device)
        return SharedCommunicator(group, library)

    def close(self) -> None:
        cores, threads = self._before
        os.sched_setaffinity(0, cores)
        self._set_torch_threads(threads)
