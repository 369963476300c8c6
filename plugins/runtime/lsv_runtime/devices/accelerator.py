"""What devices with memory, streams and a caching allocator of their own have in common."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, cast

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from lsv.capabilities import DeviceInfo
from lsv_runtime.devices.communicator import Communicator
from lsv_runtime.devices.device import Budget, Device, Event, Fetcher, Fill, Memory, StepFn
from lsv_runtime.devices.fetching import StreamFetcher, StreamRuntime
from lsv_runtime.devices.graphs import Graphs, find_difference
from lsv_runtime.devices.shapes import BatchLimits, Shape, ShapePolicy
from lsv_runtime.devices.staging import close_staging, open_staging

log = logging.getLogger(__name__)

Int32s = npt.NDArray[np.int32]

_GIB = 1 << 30
_SHARE = 0.9
_DECODE = "decode"
_TOKENS = "tokens"
_LARGE, _LARGE_STEP = 128, 32
_SIZES = (1, 2, 4, *range(8, 32, 8), *range(32, _LARGE, 16))
"""Sizes below ``_LARGE``. Steps grow: what filling rows cost shrinks beside the others, and each graph takes time and
memory at the start.
"""
_PROMPTS = (16, 32, 64, 128, 256, 384)
"""Tokens of steps with prompts. Up to a few hundred cost what reading the weights does, those that fill up included."""
MOST_TOKENS = 512
"""Where launching a step op by op takes no longer than computing it does, there is nothing to gain from a graph."""


class GraphPolicy(ShapePolicy):
    """Steps are padded to a few shapes, with block tables of full width: decoding ones to numbers of rows, of at most
    ``most`` rows, and where steps with prompts can be captured, these to numbers of tokens, of at most ``tokens``, with
    as many rows as they can have. Larger ones run as they come.

    The largest comes first, so that the smaller ones find room in what it took.
    """

    def __init__(self, limits: BatchLimits, most: int, tokens: int = 0) -> None:
        super().__init__(limits)
        top = min(most, limits.max_rows)
        self._rows = _up_to(top, (*_SIZES, *range(_LARGE, top, _LARGE_STEP)))
        top = min(tokens, limits.max_tokens, limits.max_len)
        self._tokens = _up_to(top, _PROMPTS) if limits.prompts_captured and top > 1 else []

    def measure(self, kind: str, query: Int32s, context: Int32s) -> Shape:
        shape = super().measure(kind, query, context)
        return shape if kind == _DECODE else msgspec.structs.replace(shape, tokens=int(query.sum()))

    def pad(self, shape: Shape) -> Shape:
        blocks = self.limits.max_blocks
        if shape.kind == _DECODE or shape.tokens == shape.rows:
            rows = _fit(self._rows, shape.rows)
            return shape if rows is None else Shape(_DECODE, rows, 1, blocks)
        tokens = _fit(self._tokens, shape.tokens) if shape.rows < shape.tokens else None
        return shape if tokens is None else self._with_prompts(tokens)

    def widen(self, shape: Shape, size: int) -> Shape:
        """Single tokens find room in a step that could have prompts, too."""
        if shape.kind == _DECODE and shape.rows <= size and size in self._rows:
            return Shape(_DECODE, size, 1, self.limits.max_blocks)
        fits = shape.size <= size and shape.rows + 1 < size
        return self._with_prompts(size) if fits and size in self._tokens else shape

    def _with_prompts(self, tokens: int) -> Shape:
        """With fewer rows than tokens it is no step of single tokens, and there is a row for tokens that fill it up."""
        return Shape(_TOKENS, min(tokens - 1, self.limits.max_rows + 1), tokens, self.limits.max_blocks, tokens)

    def prepares(self, shape: Shape) -> bool:
        sizes, size = (self._rows, shape.rows) if shape.kind == _DECODE else (self._tokens, shape.tokens)
        return _fit(sizes, size) is not None

    def warmup(self) -> Iterator[Shape]:
        for tokens in reversed(self._tokens):
            yield self.pad(Shape(_TOKENS, 1, tokens, 1, tokens))
        for rows in reversed(self._rows):
            yield self.pad(Shape(_DECODE, rows, 1, 1))

    def expected(self) -> int:
        return len(self._tokens) + len(self._rows)


def _up_to(top: int, sizes: Iterable[int]) -> list[int]:
    """The sizes below ``top``, and ``top``."""
    return [*(size for size in sizes if size < top), top]


def _fit(sizes: Sequence[int], count: int) -> int | None:
    """The smallest size that is no smaller than ``count``."""
    place = bisect_left(sizes, count)
    return sizes[place] if place < len(sizes) else None


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
    user says otherwise. Without ``graphs``, or with ``graph_rows`` 0, every step is launched op by op; steps with
    prompts are with ``graph_tokens`` 0, and where attention can't be captured in them.
    """

    compiles_late = True
    asynchronous = True

    def __init__(
        self,
        info: DeviceInfo,
        torch_device: torch.device,
        runtime: Runtime,
        *,
        graphs: Graphs | None = None,
        graph_rows: int = 0,
        graph_tokens: int = MOST_TOKENS,
    ) -> None:
        runtime.set_device(info.index)
        self.info, self.torch_device = info, torch_device
        self.pinned = not torch.empty(0, device=torch_device).is_cpu
        self._runtime, self._graphs, self._graph_rows, self._graph_tokens = runtime, graphs, graph_rows, graph_tokens
        self._ranks: Communicator | None = None
        open_staging(self)

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
        return GraphPolicy(limits, self._graph_rows, self._graph_tokens) if self.captures else ShapePolicy(limits)

    def compile(self, step: StepFn, shape: Shape, *, eager: bool, fillings: Sequence[Fill] = ()) -> StepFn:
        """A captured graph whose replay has given the same values as the step, or the step itself."""
        if eager or self._graphs is None or shape.tokens > self._graph_tokens:
            return step
        name = f"the step of {shape.tokens} tokens" if shape.tokens else f"the step of {shape.rows} rows"
        step()  # libraries set themselves up on their first call, which must not be captured
        self.synchronize()
        replay, why = self._capture(self._graphs, step)
        why = self._agree(why and f"{name} can't be captured ({why})")
        if why is None:
            why = find_difference(step, replay, fillings)
            why = self._agree(why and f"replaying {name} gives other values ({why})")
        if why is None:
            return replay
        self._drop_graphs(why, prompts=shape.tokens > 0)
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

    def _drop_graphs(self, why: str, *, prompts: bool) -> None:
        """No graphs from here on, or none of steps with ``prompts``; those that are there were verified and stay."""
        log.warning("no graphs %son %s: %s", "of steps with prompts " if prompts else "", self.info.name, why)
        if prompts:
            self._graph_tokens = 0
        else:
            self._graphs = None

    def event(self) -> Event | None:
        mark = self._runtime.Event()
        mark.record()
        return mark  # type: ignore[no-any-return]

    def fetcher(self, places: int) -> Fetcher | None:
        """None where nothing can be pinned: runtimes whose devices fetch from pinned memory have streams."""
        if not self.pinned:
            return None
        return StreamFetcher(cast(StreamRuntime, self._runtime), self.torch_device, places)

    def measure_peak(self, run: Callable[[], object]) -> int:
        runtime, index = self._runtime, self.info.index
        before = runtime.memory_allocated(index)
        runtime.reset_peak_memory_stats(index)
        run()
        runtime.synchronize(index)
        return max(0, runtime.max_memory_allocated(index) - before)

    def close(self) -> None:
        self.synchronize()
        close_staging(self)
        self.release_cache()


def first_line(cause: Exception) -> str:
    """An error in one line, for the log."""
    return str(cause).partition("\n")[0] or type(cause).__name__
