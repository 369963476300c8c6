"""Collectives of ranks on one machine: through memory that all of them see, see native/ranks.h."""

from __future__ import annotations

import ctypes
import mmap
import os

import torch

from lsv_cpu import native
from lsv_runtime.devices.collectives import TIMEOUT, GatheringCommunicator, open_store
from lsv_runtime.devices.communicator import Group

_CAPACITY = 1 << 20
"""Bytes of a rank's place: what is larger is exchanged in pieces, which stay in the processor's cache."""

_LINE = 64


class RanksRecord(ctypes.Structure):
    """``Ranks`` of native/ranks.h."""

    _fields_ = [
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("capacity", ctypes.c_int64),
        ("memory", ctypes.c_void_p),
        ("meetings", ctypes.c_int64),
        ("patience", ctypes.c_double),
        ("missing", ctypes.c_int32),
    ]


class SharedCommunicator(GatheringCommunicator):
    """Ranks that are processes of one machine, each with one thread that calls. Sums are made by every rank, in rank
    order and in float32, so they have the same bits everywhere.
    """

    def __init__(self, group: Group, library: ctypes.CDLL, capacity: int = _CAPACITY) -> None:
        super().__init__(group, torch.device("cpu"))
        self.ops = ()  # nothing is left to kernels but sums of whole numbers
        self._library, self._store = library, open_store(group)
        self._memory = self._share(group.size * (_LINE + 2 * capacity))
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.record = RanksRecord(group.rank, group.size, capacity, start, 0, TIMEOUT.total_seconds(), 0)
        self.address = ctypes.addressof(self.record)

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype not in native.DTYPES:
            return self.add(self.gather(x.contiguous().view(-1)).view(self.group.size, -1)).view(x.shape)
        x = x.contiguous()
        out = torch.empty_like(x)
        self.check(
            self._library.lsv_sum_ranks(self.address, native.DTYPES[x.dtype], x.data_ptr(), x.numel(), out.data_ptr())
        )
        return out

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        return self.gather(x.contiguous().view(-1)).view(self.group.size, *x.shape)[source].clone()

    def gather(self, flat: torch.Tensor) -> torch.Tensor:
        every = flat.new_empty(self.group.size * flat.numel())
        self.check(self._library.lsv_gather_ranks(self.address, flat.data_ptr(), flat.nbytes, every.data_ptr()))
        return every

    def check(self, status: int) -> None:
        """Raises ``MemoryError`` for another status than 0, and ``RuntimeError`` once a rank has not come."""
        if status:
            raise native.refusal(status)
        if self.record.missing:
            late = self.group.ranks[self.record.missing - 1]
            raise RuntimeError(f"rank {late} of the {self.group.axis} group did not answer for {TIMEOUT}: it hangs")

    def _share(self, size: int) -> mmap.mmap:
        """Memory of the first rank, which the others find by its process; it is gone with the last of them."""
        if self.group.rank == 0:
            descriptor = os.memfd_create("lsv-ranks", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
            self._store.set("memory", f"/proc/{os.getpid()}/fd/{descriptor}")
        else:
            descriptor = os.open(self._store.get("memory").decode(), os.O_RDWR | os.O_CLOEXEC)
        memory = mmap.mmap(descriptor, size)
        self._meet("mapped")
        os.close(descriptor)
        return memory

    def _meet(self, name: str) -> None:
        """Wait until every rank is here, in the store."""
        self._store.set(f"{name} {self.group.rank}", b"")
        self._store.wait([f"{name} {rank}" for rank in range(self.group.size)])
