"""Filling declared weights: everything is checked first, then tensors are streamed in piece by piece.

Memory never holds more than the model, a few chunks of a file, and the weights of one module in two forms
(as stored, and as its quantizer or kernel wants them).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_runtime.ops import Bindable, dtype_name
from lsv_runtime.weights.checkpoint import CheckpointSource, TensorInfo, read_region
from lsv_runtime.weights.finite import check_finite
from lsv_runtime.weights.place import Piece, TensorSlot
from lsv_runtime.weights.staging import Staging

_CHUNK_BYTES = 1 << 20  # stays in a core's cache on its way from the file to its place
_READERS = 4  # one core copies a good deal slower than memory and disks deliver
_CASTABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SHOWN = 20
_NOTHING = torch.empty(0, dtype=torch.uint8)

Holder = tuple[nn.Module, str]
"""A module and the name under which it has a parameter."""
Report = Callable[[int, int], None]
"""Called with (slots done, slots in all)."""
Filled = Callable[[nn.Module], None]
Copy = Callable[[torch.Tensor, torch.Tensor], object]
"""Into a place, values of the host."""


class Filler:
    """Fills a model with weights, any number of times. Make it while the declared parameters are still in place.

    ``ignores`` are regular expressions of tensors that a checkpoint may hold besides the declared ones. ``every`` are
    the slots of all ranks where the model holds but some of them: a checkpoint must fit them all.
    """

    def __init__(
        self,
        model: nn.Module,
        slots: Sequence[TensorSlot],
        ignores: Sequence[str] = (),
        every: Sequence[TensorSlot] | None = None,
    ) -> None:
        self.model, self.slots, self.ignores = model, slots, ignores
        self._every = slots if every is None else every
        self.holders = _find_holders(model)
        self._passing = _NOTHING

    @torch.no_grad()
    def fill(
        self,
        source: CheckpointSource,
        device: torch.device,
        report: Report = lambda done, total: None,
        staging: Staging | None = None,
        filled: Filled | None = None,
    ) -> None:
        """Check all tensors, then stream them to ``device``; filling again writes into the same storage.

        They go through ``staging`` where there is one. ``filled`` is called with each module whose weights, and those
        of all modules below it, are in place and packed; the next ones are read after that.

        Raises ``CheckpointError`` before a byte of data is read when the checkpoint does not fit, and on the way for
        weights that are not finite.
        """
        tensors = source.tensors()
        check(self._every, tensors, self.ignores)
        waiting: dict[int, list[TensorSlot]] = {}
        for slot in self.slots:
            if slot.optional and not _is_there(slot, tensors):
                continue
            waiting.setdefault(id(self.holders[id(slot.parameter)][0][0]), []).append(slot)
        done = 0
        with ThreadPoolExecutor(_READERS) as readers:
            for module in children_first(self.model):
                for slot in waiting.pop(id(module), ()):
                    self._fill_slot(slot, source, device, readers, staging)
                    done += 1
                    report(done, len(self.slots))
                if isinstance(module, Bindable):
                    module.filled()
                    module.pack()
                if filled is not None:
                    filled(module)
        self._passing = _NOTHING

    def _fill_slot(
        self,
        slot: TensorSlot,
        source: CheckpointSource,
        device: torch.device,
        readers: Executor,
        staging: Staging | None,
    ) -> None:
        into, tensors = self._storage(slot, device), source.tensors()
        copy = torch.Tensor.copy_ if staging is None else staging.copy_to
        chunks = (chunk for piece in slot.pieces for chunk in chunks_of(piece, tensors[piece.name]))
        for _ in readers.map(lambda chunk: chunk.copy(source, into, copy), chunks):
            pass  # raises the error of a reader that failed

    def _storage(self, slot: TensorSlot, device: torch.device) -> torch.Tensor:
        """The slot's storage; new storage if it never had any or a kernel took it."""
        holders = self.holders[id(slot.parameter)]
        parameters = [module.get_parameter(name) for module, name in holders]
        parameter = next((parameter for parameter in parameters if not parameter.is_meta), None)
        if parameter is None:
            tensor = self._make(holders, slot.parameter, device)
            if slot.padded:
                tensor.zero_()
            parameter = nn.Parameter(tensor, requires_grad=False)
        for module, name in holders:
            setattr(module, name, parameter)
        return parameter.data

    def _make(self, holders: Sequence[Holder], like: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Memory for a weight: that of the last one if kernels take both, for new pages take longer than reading."""
        (module, name), *others = holders
        kernel = module.kernel if isinstance(module, Bindable) else None
        if others or kernel is None or not kernel.takes(name):
            return torch.empty(like.shape, dtype=like.dtype, device=device)
        size = like.numel() * like.itemsize
        if size > len(self._passing):
            self._passing = torch.empty(size, dtype=torch.uint8, device=device)
        return self._passing[:size].view(like.dtype).view(like.shape)


def _find_holders(model: nn.Module) -> dict[int, tuple[Holder, ...]]:
    """The modules that hold a parameter, by its identity; several where weights are tied."""
    found: dict[int, tuple[Holder, ...]] = {}
    for module in children_first(model):
        for name, parameter in module.named_parameters(recurse=False):
            found[id(parameter)] = (*found.get(id(parameter), ()), (module, name))
    return found


def children_first(model: nn.Module) -> list[nn.Module]:
    """All modules, each after those below it."""
    ordered: dict[int, nn.Module] = {}

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if id(child) not in ordered:
                visit(child)
        ordered[id(module)] = module

    visit(model)
    return list(ordered.values())


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``[first, last)`` and ``columns`` of the tensor ``name``, and where they go in a slot's storage."""

    name: str
    first: int
    last: int
    columns: tuple[slice, ...]
    target: tuple[int | slice, ...]
    transposed: bool = False
    """Whether ``target`` is a place in the storage with its last two axes swapped."""

    @torch.inference_mode()
    def copy(self, source: CheckpointSource, into: torch.Tensor, copy: Copy) -> None:
        """Read, check, cast and place it; a single number fills its whole place.

        Inference mode belongs to a thread, so each reader has to enter it.
        """
        rows = read_region(source, self.name, (slice(self.first, self.last), *self.columns))
        place = (into.mT if self.transposed else into)[self.target]
        check_finite(self.name, rows, into.dtype)
        copy(place, rows.reshape(place.shape if rows.numel() > 1 else ()))


def chunks_of(piece: Piece, info: TensorInfo) -> Iterator[Chunk]:
    """The chunks that a piece is read in: none of an empty region, one of a tensor with one number."""
    if any(part.start == part.stop for part in piece.source):
        return
    stack = () if piece.index is None else (piece.index,)
    if math.prod(info.shape) == 1:
        yield Chunk(piece.name, 0, 1, (), (*stack, *piece.target), transposed=piece.transposed)
        return
    if piece.of is not None:
        yield Chunk(piece.name, piece.of, piece.of + 1, tuple(piece.source), (*stack, *piece.target))
        return
    rows, *columns = piece.source
    if piece.source[1:] == tuple(slice(0, size) for size in piece.shape[1:]):
        columns = []  # rows are whole
    shift = piece.target[0].start - rows.start
    step = max(1, _CHUNK_BYTES // max(1, info.dtype.itemsize * math.prod(info.shape[1:])))
    for first in range(rows.start, rows.stop, step):
        last = min(first + step, rows.stop)
        target = (*stack, slice(first + shift, last + shift), *piece.target[1:])
        yield Chunk(piece.name, first, last, tuple(columns), target, transposed=piece.transposed)


def check(slots: Sequence[TensorSlot], tensors: Mapping[str, TensorInfo], ignores: Sequence[str]) -> None:
    """Raise one ``CheckpointError`` with every tensor that is missing, unexpected, misshaped or of a wrong dtype."""
    problems: list[str] = []
    used: set[str] = set()
    for slot in slots:
        if slot.optional and not _is_there(slot, tensors):
            continue
        for piece in slot.pieces:
            used.add(piece.name)
            if piece.name in tensors:
                problems.extend(_mismatches(slot, piece, tensors[piece.name]))
            else:
                problems.append(f"{piece.name} is missing")
    ignored = [re.compile(pattern) for pattern in ignores]
    for name in tensors.keys() - used:
        if not any(pattern.search(name) for pattern in ignored):
            problems.append(f"{name} is unexpected")
    if problems:
        problems = sorted(set(problems))
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise CheckpointError("the checkpoint does not fit the model: " + "; ".join(problems[:_SHOWN]) + more)


def _is_there(slot: TensorSlot, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether a checkpoint has any piece of a slot; if it has one, it must have all."""
    return any(piece.name in tensors for piece in slot.pieces)


def _has_shape(slot: TensorSlot, piece: Piece, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape can fill a piece; trailing axes of size one are allowed."""
    count = len(piece.shape)
    fits = shape[:count] == piece.shape and math.prod(shape[count:]) == 1
    return fits or (slot.uniform and math.prod(shape) == 1)


def _mismatches(slot: TensorSlot, piece: Piece, info: TensorInfo) -> list[str]:
    name, problems = piece.name, []
    if not _has_shape(slot, piece, info.shape):
        problems.append(f"{name} has shape {list(info.shape)}, expected {list(piece.shape)}")
    if slot.exact and info.dtype != slot.parameter.dtype:
        problems.append(f"{name} is {dtype_name(info.dtype)}, expected {dtype_name(slot.parameter.dtype)}")
    elif not slot.exact and info.dtype not in _CASTABLE:
        problems.append(f"{name} is {dtype_name(info.dtype)}, expected a floating point type of 16 bits or more")
    return problems
