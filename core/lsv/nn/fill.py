"""Filling declared weights: everything is checked first, then tensors are streamed in piece by piece.

At no time is more in memory than the model, one chunk of a file, and the weights of one module in two forms
(as stored, and as its quantizer or kernel wants them).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from lsv.errors import CheckpointError
from lsv.nn.checkpoint import CheckpointSource, TensorInfo
from lsv.nn.weights import Piece, Slot
from lsv.ops import Bindable, dtype_name

_CHUNK_BYTES = 4 << 20  # small enough to stay in the cache, and in memory that malloc keeps for the next chunk
_CASTABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SHOWN = 20

Holder = tuple[nn.Module, str]
"""A module and the name under which it has a parameter."""
Report = Callable[[int, int], None]
"""Called with (slots done, slots in all)."""


class Filler:
    """Fills a model with weights, any number of times. Made while declared parameters are still in place.

    ``ignores`` are regular expressions of tensors that a checkpoint may hold beside what was declared.
    """

    def __init__(self, model: nn.Module, slots: Sequence[Slot], ignores: Sequence[str] = ()) -> None:
        self.model, self.slots, self.ignores = model, slots, ignores
        self.holders = _find_holders(model)

    @torch.no_grad()
    def fill(self, source: CheckpointSource, device: torch.device, report: Report = lambda done, total: None) -> None:
        """Check all tensors, then stream them to ``device``; a second time into the same storage.

        Raises ``CheckpointError`` before a byte of data is read when the checkpoint does not fit.
        """
        tensors = source.tensors()
        check(self.slots, tensors, self.ignores)
        waiting: dict[int, list[Slot]] = {}
        for slot in self.slots:
            if slot.optional and not _is_there(slot, tensors):
                continue
            waiting.setdefault(id(self.holders[id(slot.parameter)][0][0]), []).append(slot)
        done = 0
        for module in _children_first(self.model):
            for slot in waiting.pop(id(module), ()):
                self._fill_slot(slot, source, device)
                done += 1
                report(done, len(self.slots))
            if isinstance(module, Bindable):
                module.filled()
                module.pack()

    def _fill_slot(self, slot: Slot, source: CheckpointSource, device: torch.device) -> None:
        """Write a slot into the storage it has, or into new storage if it never had one or a kernel took it."""
        holders = self.holders[id(slot.parameter)]
        parameters = [module.get_parameter(name) for module, name in holders]
        parameter = next((parameter for parameter in parameters if not parameter.is_meta), None)
        if parameter is None:
            make = torch.zeros if slot.padded else torch.empty
            tensor = make(slot.parameter.shape, dtype=slot.parameter.dtype, device=device)
            parameter = nn.Parameter(tensor, requires_grad=False)
        for module, name in holders:
            setattr(module, name, parameter)
        for piece in slot.pieces:
            copy_piece(piece, source, parameter.data)


def _find_holders(model: nn.Module) -> dict[int, tuple[Holder, ...]]:
    """The modules a parameter belongs to, by its identity; several where weights are tied."""
    found: dict[int, tuple[Holder, ...]] = {}
    for module in _children_first(model):
        for name, parameter in module.named_parameters(recurse=False):
            found[id(parameter)] = (*found.get(id(parameter), ()), (module, name))
    return found


def _children_first(model: nn.Module) -> list[nn.Module]:
    """All modules, each behind those below it."""
    ordered: dict[int, nn.Module] = {}

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if id(child) not in ordered:
                visit(child)
        ordered[id(module)] = module

    visit(model)
    return list(ordered.values())


def copy_piece(piece: Piece, source: CheckpointSource, into: torch.Tensor) -> None:
    """Read a piece in chunks of rows, cut, cast and place it in a slot's storage."""
    into = into if piece.index is None else into[piece.index]
    if not piece.source:
        into.copy_(source.read(piece.name, 0, 1))
        return
    info = source.tensors()[piece.name]
    rows, *columns = piece.source
    shift = piece.target[0].start - rows.start
    step = max(1, _CHUNK_BYTES // max(1, info.dtype.itemsize * math.prod(info.shape[1:])))
    for first in range(rows.start, rows.stop, step):
        last = min(first + step, rows.stop)
        chunk = source.read(piece.name, first, last)[(slice(None), *columns)]
        into[(slice(first + shift, last + shift), *piece.target[1:])].copy_(chunk)


def check(slots: Sequence[Slot], tensors: Mapping[str, TensorInfo], ignores: Sequence[str]) -> None:
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


def _is_there(slot: Slot, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether a checkpoint has any of a slot's pieces; if it has some, it must have all."""
    return any(piece.name in tensors for piece in slot.pieces)


def _mismatches(slot: Slot, piece: Piece, info: TensorInfo) -> list[str]:
    name, problems = piece.name, []
    if info.shape != piece.shape:
        problems.append(f"{name} has shape {list(info.shape)}, expected {list(piece.shape)}")
    if slot.exact and info.dtype != slot.parameter.dtype:
        problems.append(f"{name} is {dtype_name(info.dtype)}, expected {dtype_name(slot.parameter.dtype)}")
    elif not slot.exact and info.dtype not in _CASTABLE:
        problems.append(f"{name} is {dtype_name(info.dtype)}, expected a floating point type of 16 bits or more")
    return problems
