"""The seam to an opened device: memory, compiled steps, events and collectives."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from lsv.capabilities import DeviceInfo
from lsv_base.errors import ConfigError
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.devices.shapes import BatchLimits, Shape, ShapePolicy

if TYPE_CHECKING:
    import torch

StepFn = Callable[[], Any]
"""Computes a step over buffers that keep their places in memory."""

Fill = Callable[[], None]
"""Writes values into the buffers of a step."""


class Memory(msgspec.Struct, frozen=True):
    """Bytes of one device."""

    total: int
    free: int
    used: int
    """What this process holds."""


class Budget(msgspec.Struct, frozen=True):
    """What of a device's memory the KV cache may take once the weights are in place."""

    kv: int
    """Bytes."""
    why: str = ""


class Event(Protocol):
    """A mark in the work given to a device."""

    def synchronize(self) -> None:
        """Wait until the device is past it."""
        ...


class Fetcher(Protocol):
    """Copies from pinned memory of the host, made beside a device's work and in an order of their own. Where steps can
    be captured, they are captured with the step that asks for them.
    """

    def fetch(self, place: int, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy into the first of each pair what the second holds, once the device is past all work given to it so far.
        ``place`` is the number by which these copies are expected.
        """
        ...

    def expect(self, place: int) -> None:
        """Have the work that is given from here on wait for what was fetched last for ``place``."""
        ...


class Device(abc.ABC):
    """One opened device, in the worker process only."""

    pinned: bool = False
    """Whether its copies from and to pinned host memory run beside its work."""
    largest_allocation: int | None = None
    """The most bytes it gives at a time; None where that is all that is free."""
    compiles_late: bool = False
    """Whether kernels may be compiled when they are launched for the first time, and steps wait for that."""
    asynchronous: bool = False
    """Whether its work runs beside the host, which waits for it where it reads what came of it."""
    shares_host: bool = False
    """Whether its memory is the host's."""
    info: DeviceInfo
    torch_device: torch.device

    @property
    def captures(self) -> bool:
        """Whether ``compile`` makes graphs, which hold memory of their own: room for it is kept beside the cache."""
        return False

    @abc.abstractmethod
    def memory(self) -> Memory: ...

    @abc.abstractmethod
    def budget(self, memory: Memory, share: float | None) -> Budget:
        """The platform's own rule for what is left after the weights; ``share`` is what the user asked for."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""

    def release_cache(self) -> None:
        """Give cached memory back to the system."""

    def communicator(self, group: Group) -> Communicator | None:
        """Collectives for a group; None where a group of one needs none."""
        if group.size > 1:
            raise ConfigError(f"{type(self).__name__} can't form a {group.axis} group of {group.size}: use size 1")
        return None

    def shapes(self, limits: BatchLimits) -> ShapePolicy:
        return ShapePolicy(limits)

    def compile_parts(self, model: torch.nn.Module) -> None:
        """Replace parts of a filled ``lsv_runtime.nn.model.Model`` by others that can be compiled, on a device that
        compiles these and not whole steps. Comes before the first ``compile``, unless steps are to run op by op.
        """

    def compile(self, step: StepFn, shape: Shape, *, eager: bool, fillings: Sequence[Fill] = ()) -> StepFn:
        """A faster form of ``step`` for one shape: a graph, a compiled function, or ``step`` itself.

        ``step`` reads and writes tensors that stay where they are, and may be called here as often as needed. Each of
        ``fillings`` writes other values into them, so that what was made can be compared with the step. ``eager`` asks
        for no more than the device can't do without.
        """
        return step

    def event(self) -> Event | None:
        """A mark behind all work given to the device so far; None where work is done when the call returns."""
        return None

    def observe(self, kind: str, start: Sequence[int], count: Sequence[int]) -> AbstractContextManager[object]:
        """A context for giving a step to the device, for a platform that watches its steps. The default does nothing.

        ``kind`` is the plan's. Row by row, ``count`` tokens are computed after ``start`` others.
        """
        return nullcontext()

    def fetcher(self, places: int) -> Fetcher | None:
        """Copies beside its work, into so many places; None where it makes none."""
        return None

    def is_fatal(self, error: Exception) -> bool:
        """Whether the device is of no use any more after ``error`` in a step; if not, the next step is run on it.

        The default waits for its work: a device that is lost fails again.
        """
        try:
            self.synchronize()
        except Exception:
            return True
        return False

    def record_range(self, *, start: bool) -> None:
        """Have the vendor's profiler, under which the process runs, begin to record or stop.

        Raises ``ConfigError`` where it can't be told.
        """
        raise ConfigError("this platform's profiler can't record on demand: use the profiler torch")

    def measure_peak(self, run: Callable[[], object]) -> int:
        """Bytes that ``run`` takes at its peak beyond what is held before; 0 where that is not measured."""
        return 0

    def close(self) -> None:
        """Release the device."""
