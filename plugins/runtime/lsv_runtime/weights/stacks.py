"""Checkpoints that stack or fuse weights, such as those of all experts, in one tensor: read part by part."""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.weights.checkpoint import CheckpointSource, RegionSource, TensorInfo, read_region
from lsv_runtime.weights.regions import Region

_HELD = 4
"""Experts that are held in memory: one for each reader of files."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A form of tensor [experts, …] that checkpoints hold instead of one tensor for each expert and projection."""

    name: str
    """A regular expression that matches all of its name, with the place before it as the first group."""
    parts: tuple[str, ...]
    """What the model calls the parts of one expert, behind ``<place>.<number>.``; several are fused by outputs."""
    transposed: bool = False
    """Whether outputs are the last axis, not the first of an expert's."""
    interleaved: bool = False
    """Whether the outputs of fused parts take turns, where otherwise they follow one another."""
    experts: int | None = None
    """How many experts the outputs hold one after another, where the first axis is not the experts; 0 for a tensor
    without experts, whose parts have no number in their names."""
    shares: tuple[int, ...] = ()
    """How the outputs are shared by fused parts, where not evenly."""
    inputs: int | None = None
    """How many inputs an expert has, where checkpoints differ in which axis is last."""
    beside: tuple[str, int] | None = None
    """Another tensor below the same place, of the same order, and its inputs: its shape decides where this one's inputs
    and outputs are equally many."""

    def parts_of(self, whole: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One expert's tensor, cut into its parts."""
        if self.transposed:
            whole = whole.mT
        count = len(self.parts)
        if self.interleaved:
            return tuple(whole[number::count].contiguous() for number in range(count))
        sizes = [share * len(whole) // sum(self.weights) for share in self.weights]
        return tuple(part.contiguous() for part in torch.split(whole, sizes))

    def fitting(self, shape: tuple[int, ...], tensors: Mapping[str, TensorInfo], place: str = "") -> Stack:
        """The same, in the order that a tensor of such a shape has at a place in a checkpoint."""
        if self.inputs is None:
            return self
        last = _outputs_last(shape, self.inputs)
        if last is None and self.beside is not None:
            name, inputs = self.beside
            other = tensors.get(f"{place}.{name}")
            last = None if other is None else _outputs_last(other.shape, inputs)
        return self if last is None else dataclasses.replace(self, transposed=last)

    @property
    def ordered(self) -> bool:
        """Whether a part's outputs are rows that follow one another, so that it is read like any other tensor."""
        return not (self.transposed or self.interleaved)

    @property
    def weights(self) -> tuple[int, ...]:
        """The shares of all parts."""
        return self.shares or (1,) * len(self.parts)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the rows of a part of one expert are: in a tensor's rows, and which part of these."""

    stack: Stack
    name: str
    first: int
    last: int
    part: int
    begin: int
    """The first of the part's outputs among the expert's."""

    def region_of(self, region: Region) -> Region:
        """Where a region of the part is in the tensor, whose stack is ordered."""
        rows, *others = region
        if self.stack.experts is None:
            return slice(self.first, self.last), slice(self.begin + rows.start, self.begin + rows.stop), *others
        first = self.first + self.begin
        return slice(first + rows.start, first + rows.stop), *others


class UnfoldedSource:
    """Another source, with its stacks unfolded into the tensors of single experts."""

    def __init__(self, source: CheckpointSource, stacks: Sequence[Stack]) -> None:
        self.source = source
        self._infos = dict(source.tensors())
        self._places: dict[str, _Place] = {}
        self._held: OrderedDict[tuple[str, int], tuple[torch.Tensor, ...]] = OrderedDict()
        self._lock = threading.Lock()
        for name, info in source.tensors().items():
            for stack in stacks:
                found = re.fullmatch(stack.name, name)
                if found:
                    del self._infos[name]
                    fitting = stack.fitting(info.shape, source.tensors(), found[1])
                    for part, place, shape in _unfold(fitting, name, info.shape):
                        own = f"{found[1]}.{part}"
                        self._infos[own], self._places[own] = TensorInfo(shape, info.dtype), place
                    break

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        return self.read_region(name, (slice(first, last),))

    def read_region(self, name: str, region: Region) -> torch.Tensor:
        place = self._places.get(name)
        if place is None:
            return read_region(self.source, name, region)
        if place.stack.ordered and isinstance(self.source, RegionSource):
            found = self.source.read_region(place.name, place.region_of(region))
            return found[0] if place.stack.experts is None else found
        return self._parts(place)[place.part][tuple(region)]

    def close(self) -> None:
        self._held.clear()
        self.source.close()

    def _parts(self, place: _Place) -> tuple[torch.Tensor, ...]:
        """All parts of an expert; its rows come from the file once, however small the steps they are read in."""
        key = (place.name, place.first)
        with self._lock:
            if key not in self._held:
                rows = self.source.read(place.name, place.first, place.last)
                whole = rows if place.stack.experts is not None else rows[0]
                # the memory of what was read belongs to the source
                self._held[key] = tuple(part.clone() for part in place.stack.parts_of(whole))
                if len(self._held) > _HELD:
                    self._held.popitem(last=False)
            return self._held[key]


def _outputs_last(shape: tuple[int, ...], inputs: int) -> bool | None:
    """Whether outputs are the last axis of stacked experts; None where their inputs and outputs are equally many."""
    return None if len(shape) != 3 or shape[1] == shape[2] else shape[1] == inputs


def _unfold(stack: Stack, name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, _Place, tuple[int, ...]]]:
    """The parts of all experts: their names behind the place, where they are, their shapes."""
    experts = stack.experts or (1 if stack.experts == 0 or not shape else shape[0])
    fits = bool(shape) and experts > 0 and shape[0] % experts == 0
    rows = shape[0] // experts if fits else 0
    inner = (rows, *shape[1:]) if stack.experts is not None else shape[1:]
    if stack.transposed:
        inner = inner[::-1]
    if not fits or len(inner) < 1 + stack.transposed or inner[0] % sum(stack.weights):
        raise CheckpointError(f"{name} has shape {list(shape)}, which is not that of experts stacked in one tensor")
    counts = [share * inner[0] // sum(stack.weights) for share in stack.weights]
    begins = list(itertools.accumulate(counts, initial=0))
    for expert in range(experts):
        for number, (part, count) in enumerate(zip(stack.parts, counts, strict=True)):
            place = _Place(stack, name, expert * rows, (expert + 1) * rows, number, begins[number])
            own = part if stack.experts == 0 else f"{expert}.{part}"
            yield own, place, (count, *inner[1:])
