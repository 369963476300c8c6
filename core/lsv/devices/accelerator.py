"""What devices with memory, streams and a caching allocator of their own have in common."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from lsv.capabilities import DeviceInfo
from lsv.devices.graphs import Graphs, find_difference
from lsv.platform import BatchLimits, Budget, Communicator, Device, Event, Fill, Memory, Shape, ShapePolicy, StepFn

log = logging.getLogger(__name__)

_GIB = 1 << 30
_SHARE = 0.9
_DECODE = "decode"
_LARGE, _LARGE_STEP = 128, 32
_SIZES = (1, 2, 4, *range(8, 32, 8), *range(32, _LARGE, 16))
"""Sizes below ``_LARGE``. Steps grow: what filling rows cost shrinks beside the others, and each graph takes time and
memory at the start.
"""


class DecodePolicy(ShapePolicy):
    """Decoding steps are padded to a few numbers of rows, with block tables of full width; others run as they come.

    ``most`` bounds the rows of a padded step, and so the number of shapes. The largest comes first, so that the smaller
    ones find room in what it took.
    """

    def __init__(self, limits: BatchLimits, most: int) -> None:
        super().__init__(limits)
        top = min(most, limits.max_rows)
        sizes = (*_SIZES, *range(_LARGE, top, _LARGE_STEP))
        self._sizes = [*(size for size in sizes if size < top), top]

    def pad(self, shape: Shape) -> Shape:
        if shape.kind != _DECODE or shape.rows > self._sizes[-1]:
            return shape
        rows = self._sizes[bisect_left(self._sizes, shape.rows)]
        return Shape(_DECODE, rows, 1, self.limits.max_blocks)

    def warmup(self) -> Iterator[Shape]:
        return (self.pad(Shape(_DECODE, rows, 1, 1)) for rows in reversed(self._sizes))

    def expected(self) -> int:
        return len(self._sizes)


class Runtime(Protocol):
    """The functions that torch's modules for kinds of devices agree on; ``index`` is a device's number."""

    Event: Callable[[], Any]

    def set_device(self, index: int, /) -> None: ...
    def mem_get_info(self, index: int, /) -> tuple[int, int]: ...
    def memory_allocated(self, index: int, /) -> int: ...
    def memory_reserved(self, index: int, /) -> int: ...
    def max_memory_allocated(self, index: int, /) -> int: ...
    def reset_peak_memory_stats(self, index: int, /) -> None: ...
    def empty_cache(self) -> None: ...
    def synchronize(self, index: int, /) -> None: ...


class Accelerator(Device):
    """A device behind a torch ``runtime``. Work given to it runs beside the host, in the order it was given.

    ``gpu_memory_utilization`` is a share of all its memory, for weights, activations and cache together; 0.9 unless the
    user says otherwise. Without ``graphs``, or with ``graph_rows`` 0, every step is launched op by op.
    """

    def __init__(
        self,
        info: DeviceInfo,
        torch_device: torch.device,
        runtime: Runtime,
        *,
        graphs: Graphs | None = None,
        graph_rows: int = 0,
    ) -> None:
        runtime.set_device(info.index)
        self.info, self.torch_device = info, torch_device
        self.pinned = not torch.empty(0, device=torch_device).is_cpu
        self._runtime, self._graphs, self._graph_rows = runtime, graphs, graph_rows
        self._ranks: Communicator | None = None

    @property
    def captures(self) -> bool:
        return self._graphs is not None and self._graph_rows > 0

    def memory(self) -> Memory:
        free, total = self._runtime.mem_get_info(self.info.index)
        return Memory(total=total, free=free, used=min(total, self._runtime.memory_reserved(self.info.index)))

    def budget(self, memory: Memory, share: float | None) -> Budget:
        allowed = int((share or _SHARE) * memory.total)
        left = min(allowed - memory.used, memory.free)
        why = f"{share or _SHARE:g} of {memory.total / _GIB:.1f} GiB, less the {memory.used / _GIB:.1f} GiB in use"
        return Budget(max(0, left), why=why)

    def synchronize(self) -> None:
        self._runtime.synchronize(self.info.index)

    def release_cache(self) -> None:
        self._runtime.empty_cache()

    def shapes(self, limits: BatchLimits) -> ShapePolicy:
        return DecodePolicy(limits, self._graph_rows) if self.captures else ShapePolicy(limits)

    def compile(self, step: StepFn, shape: Shape, *, eager: bool, fillings: Sequence[Fill] = ()) -> StepFn:
        """A captured graph whose replay has given the same values as the step, or the step itself."""
        if eager or self._graphs is None:
            return step
        step()  # libraries set themselves up on their first call, which must not be captured
        self.synchronize()
        replay, why = self._capture(self._graphs, step)
        why = self._agree(why and f"the step of {shape.rows} rows can't be captured ({why})")
        if why is None:
            why = find_difference(step, replay, fillings)
            why = self._agree(why and f"replaying the step of {shape.rows} rows gives other values ({why})")
        if why is None:
            return replay
        self._drop_graphs(why)
        return step

    def _capture(self, graphs: Graphs, step: StepFn) -> tuple[StepFn, str | None]:
        """A graph of the step, or the step itself and why it has none."""
        try:
            return graphs.capture(step), None
        except Exception as cause:  # whatever it is, the step has just run without
            why = first_line(cause)
        self.synchronize()
        self._runtime.empty_cache()
        return step, why

    def _agree(self, why: str | None) -> str | None:
        """Why there is to be no graph on any rank: one that replays would wait for one that launches op by op."""
        if self._ranks is None:
            return why
        refusing = torch.tensor([int(why is not None)], device=self.torch_device)
        found = self._ranks.all_gather(refusing).tolist()
        return why or (f"there is none on rank {found.index(1)}" if any(found) else None)

    def _drop_graphs(self, why: str) -> None:
        """No graphs from here on; those that are there have been verified and stay."""
        log.warning("no graphs on %s: %s", self.info.name, why)
        self._graphs = None

    def event(self) -> Event | None:
        mark = self._runtime.Event()
        mark.record()
        return mark  # type: ignore[no-any-return]

    def measure_peak(self, run: Callable[[], object]) -> int:
        runtime, index = self._runtime, self.info.index
        before = runtime.memory_allocated(index)
        runtime.reset_peak_memory_stats(index)
        run()
        runtime.synchronize(index)
        return max(0, runtime.max_memory_allocated(index) - before)

    def close(self) -> None:
        self.synchronize()
        self.release_cache()


def first_line(cause: Exception) -> str:
    """An error in one line, for the log."""
    return str(cause).partition("\n")[0] or type(cause).__name__
