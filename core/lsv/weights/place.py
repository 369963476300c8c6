"""``Weights`` is a place in a checkpoint: modules declare there what they need and are filled later.

Declaring reads nothing but the numbers of config.json. Each declared tensor is a ``Slot``: a meta parameter
and the ``Piece``s of checkpoint tensors that make it up, already cut to this rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from lsv.errors import ConfigError
from lsv.platform import Communicator
from lsv.weights.naming import Prefixes
from lsv.weights.quantizer import BIAS, Linear, LinearLayer, Quantizer, Role, StoredTensor


@dataclass(frozen=True, slots=True)
class Shard:
    """Which of ``size`` tensor-parallel ranks this is, and what falls to it."""

    rank: int = 0
    size: int = 1

    def cut(self, total: int, what: str) -> tuple[int, int]:
        """This rank's ``[start, stop)`` of ``total``; raises ``ConfigError`` when shares are not even."""
        if total % self.size:
            raise ConfigError(
                f"{total} {what} can't be cut over {self.size} ranks: choose a number that divides them",
                param="tensor_parallel_size",
            )
        share = total // self.size
        return self.rank * share, (self.rank + 1) * share

    def cut_or_copy(self, total: int, what: str) -> tuple[int, int]:
        """Like ``cut``, but where there are more ranks than units, several ranks hold the same one."""
        if total >= self.size:
            return self.cut(total, what)
        if self.size % total:
            raise ConfigError(
                f"{total} {what} can't be copied evenly to {self.size} ranks: choose a multiple of {total}",
                param="tensor_parallel_size",
            )
        unit = self.rank * total // self.size
        return unit, unit + 1

    def cut_padded(self, total: int) -> tuple[int, int, int]:
        """``(start, stop, width)`` with equal widths on all ranks; the last ones may own less than that."""
        width = -(-total // self.size)
        start = min(self.rank * width, total)
        return start, min(start + width, total), width


@dataclass(frozen=True, slots=True)
class Piece:
    """A region of a checkpoint tensor and where it goes in a slot.

    ``shape`` is the whole tensor's; ``source`` and ``target`` are regions of equal size, one slice an axis of
    the tensor. ``index`` leads into a stacked slot's first axis.
    """

    name: str
    shape: tuple[int, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]
    index: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A declared tensor. ``exact`` demands the stored dtype as it is; otherwise any float is cast.

    ``padded`` says that pieces do not cover it all; the rest is zero. A slot that is ``optional`` may have none of its
    pieces in the checkpoint, and stays on meta then. Where it is ``uniform``, a single number may stand for a piece.
    """

    parameter: nn.Parameter
    pieces: tuple[Piece, ...]
    exact: bool = False
    padded: bool = False
    optional: bool = False
    uniform: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One of the projections a linear layer fuses: outputs ``[start, stop)`` of the ``total`` stored under ``name``.

    Where the layer has a bias and this part is not ``biased``, its bias is zero.
    """

    name: str
    total: int
    start: int
    stop: int
    biased: bool = True

    @property
    def width(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Declaration:
    """What all places of one model share. ``slots`` grows while the model is being built."""

    dtype: torch.dtype
    device: torch.device
    quantizer: Quantizer
    shard: Shard = Shard()
    communicator: Communicator | None = None
    prefixes: Prefixes = ()
    slots: list[Slot] = field(default_factory=list)


class Weights:
    """A place in a checkpoint: ``w / "mlp"`` is the same checkpoint one level down."""

    def __init__(self, declaration: Declaration, name: str = "") -> None:
        self.declaration = declaration
        self.name = name

    def __truediv__(self, name: str | int) -> Weights:
        return Weights(self.declaration, f"{self.name}.{name}" if self.name else str(name))

    def uncut(self) -> Weights:
        """The same place for modules of which every rank holds a whole one."""
        return Weights(replace(self.declaration, shard=Shard(), communicator=None), self.name)

    @property
    def dtype(self) -> torch.dtype:
        return self.declaration.dtype

    @property
    def device(self) -> torch.device:
        """Where weights will be once they are filled."""
        return self.declaration.device

    @property
    def shard(self) -> Shard:
        return self.declaration.shard

    @property
    def communicator(self) -> Communicator | None:
        """Collectives of the tensor-parallel group; None when it has one rank."""
        return self.declaration.communicator

    def take(self, suffix: str, shape: Sequence[int], cut: tuple[int, int, int] | None = None) -> nn.Parameter:
        """A tensor in the model's dtype. ``cut`` = (axis, start, stop) takes a part of one axis."""
        region = _region(shape, {} if cut is None else {cut[0]: (cut[1], cut[2])})
        piece = Piece((self / suffix).name, tuple(shape), region, _at_origin(region))
        return self.declare([part.stop - part.start for part in region], (piece,))

    def declare(
        self,
        shape: Sequence[int],
        pieces: Sequence[Piece],
        *,
        dtype: torch.dtype | None = None,
        padded: bool = False,
        optional: bool = False,
        uniform: bool = False,
    ) -> nn.Parameter:
        """A meta parameter of any form; ``dtype`` None means floating point, cast to the model's dtype, and float32
        floating point, cast to that. Any other is what the checkpoint must hold.
        """
        tensor = torch.empty(tuple(shape), dtype=dtype or self.dtype, device="meta")
        parameter = nn.Parameter(tensor, requires_grad=False)
        exact = dtype not in (None, torch.float32)
        self.adopt(parameter, pieces, exact=exact, padded=padded, optional=optional, uniform=uniform)
        return parameter

    def adopt(
        self,
        parameter: nn.Parameter,
        pieces: Sequence[Piece],
        *,
        exact: bool = False,
        padded: bool = False,
        optional: bool = False,
        uniform: bool = False,
    ) -> None:
        """Have a parameter that exists already (on meta) filled like a declared one."""
        self.declaration.slots.append(Slot(parameter, tuple(pieces), exact, padded, optional, uniform))

    def linear(
        self,
        role: Role,
        parts: Sequence[Part],
        inputs: int,
        *,
        reads: tuple[int, int] | None = None,
        bias: bool = False,
        stored_bias: bool = False,
    ) -> Linear:
        """A linear layer of the model's format over ``parts``; ``reads`` = (start, stop) cuts its inputs. With
        ``stored_bias`` alone there is a bias that the caller adds.
        """
        start, stop = reads or (0, inputs)
        name = (self / parts[0].name).name if len(parts) == 1 else self.name
        names = tuple((self / part.name).name for part in parts)
        outputs, cut = tuple(part.width for part in parts), None if stop - start == inputs else (start, stop)
        prefixes = self.declaration.prefixes
        layer = LinearLayer(
            name, role, stop - start, outputs, bias, self.dtype, names, cut, bias or stored_bias, prefixes
        )
        stored = self.declaration.quantizer.stored(layer) + ((BIAS,) if bias else ())
        tensors = {tensor.suffix: self.take_stored(tensor, parts, inputs, (start, stop)) for tensor in stored}
        return self.declaration.quantizer.build(layer, tensors)

    def take_stored(
        self, tensor: StoredTensor, parts: Sequence[Part], inputs: int, reads: tuple[int, int]
    ) -> nn.Parameter:
        """One stored tensor of a linear layer, its parts cut and fused: the same for every format."""
        pieces: list[Piece] = []
        shape: list[int] = []
        offset = 0
        for number, part in enumerate(parts):
            name = f"{(self / part.name).name}.{tensor.suffix}"
            whole, region = _stored_region(tensor, part, inputs, reads, name)
            target = list(_at_origin(region))
            shape = [place.stop for place in target]
            if tensor.output_axis is not None:
                width = shape[tensor.output_axis]
                target[tensor.output_axis] = slice(offset, offset + width)
                offset += width
            index = number if tensor.output_axis is None and len(parts) > 1 else None
            if tensor is not BIAS or part.biased:
                pieces.append(Piece(name, whole, region, tuple(target), index))
        if tensor.output_axis is not None:
            shape[tensor.output_axis] = offset
        elif len(parts) > 1:
            shape = [len(parts), *shape]
        padded = len(pieces) < len(parts)
        return self.declare(
            shape, pieces, dtype=tensor.dtype, padded=padded, optional=tensor.optional, uniform=tensor.uniform
        )


def _stored_region(
    tensor: StoredTensor, part: Part, inputs: int, reads: tuple[int, int], name: str
) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """The whole shape of a stored tensor and the region one rank reads of it."""
    axes: dict[int, tuple[int, int, int]] = {}
    if tensor.output_axis is not None:
        axes[tensor.output_axis] = _elements(part.total, part.start, part.stop, tensor.per_output, name)
    if tensor.input_axis is not None:
        axes[tensor.input_axis] = _elements(inputs, *reads, tensor.per_input, name)
    others = (axis for axis in range(len(axes) + len(tensor.sizes)) if axis not in axes)
    axes |= {axis: (size, 0, size) for axis, size in zip(tuple(others), tensor.sizes, strict=True)}
    order = sorted(axes)
    return tuple(axes[axis][0] for axis in order), tuple(slice(axes[axis][1], axes[axis][2]) for axis in order)


def _elements(total: int, start: int, stop: int, per: int, name: str) -> tuple[int, int, int]:
    """Features -> elements that each cover ``per`` of them; a cut must fall between elements."""
    if start % per or (stop % per and stop != total):
        raise ConfigError(
            f"{name}: features {start} to {stop} can't be cut out of elements that cover {per} each; "
            "choose a smaller tensor_parallel_size",
            param="tensor_parallel_size",
        )
    return -(-total // per), start // per, -(-stop // per)


def _region(shape: Sequence[int], cuts: Mapping[int, tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(*cuts.get(axis, (0, size))) for axis, size in enumerate(shape))


def _at_origin(region: Sequence[slice]) -> tuple[slice, ...]:
    return tuple(slice(0, part.stop - part.start) for part in region)
