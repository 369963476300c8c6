"""``Weights`` is a place in a checkpoint: modules declare what they need there and are filled later.

Declaring reads nothing but the numbers of config.json. Each declared tensor is a ``TensorSlot``: a meta parameter
and the ``Piece``s of checkpoint tensors that make it up, already reduced to this rank's shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import nn

from lsv_base.errors import CheckpointError, ConfigError
from lsv_runtime.devices.communicator import Communicator
from lsv_runtime.weights.naming import Prefixes
from lsv_runtime.weights.placement import Placement
from lsv_runtime.weights.quantizer import BIAS, WEIGHT, Linear, LinearLayer, Quantizer, Role, StoredTensor


@dataclass(frozen=True, slots=True)
class Shard:
    """Which of ``size`` tensor-parallel ranks this is, and which share of a dimension it gets."""

    rank: int = 0
    size: int = 1

    def split(self, total: int, what: str) -> tuple[int, int]:
        """This rank's ``[start, stop)`` of ``total``; raises ``ConfigError`` when it can't be split evenly.

        ``what`` names the units in the message, such as "attention heads".
        """
        if total % self.size:
            raise ConfigError(
                f"{total} {what} can't be split over {self.size} ranks: choose a number that divides them",
                param="tensor_parallel_size",
            )
        share = total // self.size
        return self.rank * share, (self.rank + 1) * share

    def split_or_replicate(self, total: int, what: str) -> tuple[int, int]:
        """Like ``split``, but with more ranks than units each unit is replicated on several ranks."""
        if total >= self.size:
            return self.split(total, what)
        if self.size % total:
            raise ConfigError(
                f"{total} {what} can't be replicated evenly on {self.size} ranks: choose a multiple of {total}",
                param="tensor_parallel_size",
            )
        unit = self.rank * total // self.size
        return unit, unit + 1

    def split_padded(self, total: int) -> tuple[int, int, int]:
        """``(start, stop, width)`` with the same width on all ranks; the last ranks may own less and are padded."""
        width = -(-total // self.size)
        start = min(self.rank * width, total)
        return start, min(start + width, total), width


@dataclass(frozen=True, slots=True)
class Piece:
    """A region of a checkpoint tensor, and where it goes in a slot's parameter."""

    name: str
    """The tensor's name in the checkpoint."""
    shape: tuple[int, ...]
    """The full shape of that tensor."""
    source: tuple[slice, ...]
    """The region that is read, a slice for each axis."""
    target: tuple[slice, ...]
    """Where it goes: a region of the same size."""
    index: int | None = None
    """Where the parameter stacks several tensors, the place of this one along the new first axis."""
    of: int | None = None
    """Where the checkpoint's tensor stacks several, which one along its first axis: ``source`` is a region of that."""
    transposed: bool = False
    """Whether the checkpoint's tensor lies across the parameter, whose last two axes ``target`` then names in the
    checkpoint's order."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorSlot:
    """A declared tensor: what a filler fills from a checkpoint."""

    parameter: nn.Parameter
    """On meta until it is filled."""
    pieces: tuple[Piece, ...]
    """What it is put together from."""
    exact: bool = False
    """Whether the stored dtype must be the parameter's; otherwise any floating point is cast."""
    padded: bool = False
    """Whether the pieces leave a part of it uncovered, which is then zero."""
    optional: bool = False
    """Whether a checkpoint may lack all of its pieces; the parameter then stays on meta."""
    uniform: bool = False
    """Whether a single number may stand for a piece."""


class Tie(NamedTuple):
    """A head and the embedding whose weight it shares, by the names of the tensors."""

    head: str
    embedding: str


@dataclass(frozen=True, slots=True)
class Part:
    """One of the projections that a linear layer fuses."""

    name: str
    """Its name below the layer's place, e.g. ``q_proj``."""
    total: int
    """Outputs as stored."""
    start: int
    """The first output of this rank's shard."""
    stop: int
    """The output after the shard's last one."""
    biased: bool = True
    """False for a part whose bias is zero although the layer has one."""
    runs: tuple[tuple[int, int], ...] = ()
    """Where the shard's outputs do not follow one another, as where a tensor holds q, k and v of one head after those
    of another: each run as [start, stop). None for the one run from ``start`` to ``stop``."""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The runs that make up the shard, in order."""
        return self.runs or ((self.start, self.stop),)

    @property
    def width(self) -> int:
        """Outputs of the shard."""
        return sum(stop - start for start, stop in self.spans)


@dataclass(frozen=True, slots=True)
class Declaration:
    """What all places of one model share."""

    dtype: torch.dtype
    """The model computes in it, and plain weights are cast to it."""
    device: torch.device
    """Where weights will be once they are filled."""
    quantizer: Quantizer
    """The weight format of linear layers."""
    shard: Shard = Shard()
    """The rank whose share is declared."""
    communicator: Communicator | None = None
    """Collectives of the tensor-parallel group; None when it has one rank."""
    placement: Placement | None = None
    """Which rank has which experts, whole; None where each has a part of all."""
    prefixes: Prefixes = ()
    """What checkpoints write instead of the beginnings of the model's tensor names."""
    untied: frozenset[str] = frozenset()
    """Tensors of heads that config.json ties to the embedding while the checkpoint has others for them."""
    towerless: str = ""
    """Why towers that a model can do without are not read; empty where they are."""
    slots: list[TensorSlot] = field(default_factory=list)
    ties: list[Tie] = field(default_factory=list)
    """The heads that share the embedding's weight."""
    unread: list[str] = field(default_factory=list)
    """Tensors that checkpoints hold in another form as well, which is read instead."""


class Weights:
    """A place in a checkpoint: ``w / "mlp"`` is the same checkpoint one level down."""

    def __init__(self, declaration: Declaration, name: str = "", *, transposes: bool = False) -> None:
        """With ``transposes``, plain weights of linear layers are stored as [inputs, outputs]."""
        self.declaration = declaration
        self.name = name
        self.transposes = transposes

    def __truediv__(self, name: str | int) -> Weights:
        below = f"{self.name}.{name}" if self.name else str(name)
        return Weights(self.declaration, below, transposes=self.transposes)

    def replicated(self) -> Weights:
        """The same place for modules that are replicated: every rank holds all of them."""
        alone = replace(self.declaration, shard=Shard(), communicator=None)
        return Weights(alone, self.name, transposes=self.transposes)

    def spread(self) -> Weights:
        """The same place for experts, of which a rank has some: whole where they are spread over the ranks."""
        return self if self.declaration.placement is None else self.replicated()

    def transposed(self) -> Weights:
        """The same place for linear layers whose plain weights are stored as [inputs, outputs], as GPT-2's are."""
        return Weights(self.declaration, self.name, transposes=True)

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

    def tie(self, embedding: str) -> bool:
        """Have a head at this place share the weight of the embedding at another; False where it has its own."""
        tie = Tie((self / "weight").name, f"{embedding}.weight")
        if tie.head in self.declaration.untied:
            return False
        if tie not in self.declaration.ties:
            self.declaration.ties.append(tie)
        return True

    def take(self, suffix: str, shape: Sequence[int], shard: tuple[int, int, int] | None = None) -> nn.Parameter:
        """A tensor of this shape, in the model's dtype. ``shard`` = (axis, start, stop) takes a part of one axis."""
        region = _region(shape, {} if shard is None else {shard[0]: (shard[1], shard[2])})
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
        """A meta parameter of this shape, made of any pieces; for the flags see ``TensorSlot``.

        ``dtype`` None takes any floating point and casts it to the model's dtype; float32 takes any floating point,
        too. Any other dtype is what the checkpoint must hold.
        """
        try:
            tensor = torch.empty(tuple(shape), dtype=dtype or self.dtype, device="meta")
        except (RuntimeError, TypeError) as cause:
            raise CheckpointError(
                f"{self.name}: by config.json its shape is {list(shape)}, which none can be"
            ) from cause
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
        """Have an existing meta parameter filled like a declared one."""
        self.declaration.slots.append(TensorSlot(parameter, tuple(pieces), exact, padded, optional, uniform))

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
        """A linear layer of the model's format, with ``parts`` fused: [..., inputs] -> [..., width of all parts].

        ``reads`` = (start, stop) is the shard of its inputs. With ``stored_bias`` alone there is a bias, which the
        caller adds. Where several shards of the inputs share a bias, the first one has it and the others have zeros:
        their results are summed.
        """
        start, stop = reads or (0, inputs)
        name = (self / parts[0].name).name if len(parts) == 1 else self.name
        names = tuple((self / part.name).name for part in parts)
        outputs, shard = tuple(part.width for part in parts), None if stop - start == inputs else (start, stop)
        prefixes = self.declaration.prefixes
        layer = LinearLayer(
            name, role, stop - start, outputs, bias, self.dtype, names, shard, bias or stored_bias, prefixes,
            tuple(part.spans for part in parts), tuple((part.total, inputs) for part in parts),
        )  # fmt: skip
        stored = self.declaration.quantizer.stored(layer) + ((BIAS,) if bias else ())
        tensors = {tensor.suffix: self.take_stored(tensor, parts, inputs, (start, stop)) for tensor in stored}
        return self.declaration.quantizer.build(layer, tensors)

    def take_stored(
        self,
        tensor: StoredTensor,
        parts: Sequence[Part],
        inputs: int,
        reads: tuple[int, int],
        held: int | None = None,
    ) -> nn.Parameter:
        """One stored tensor of a linear layer, its parts sharded and fused: the same for every format.

        ``held`` outputs of the only part make zeros of those that it lacks.
        """
        across = self.transposes and tensor.suffix == WEIGHT.suffix
        elsewhere = tensor is BIAS and reads[0] > 0
        if across and tensor != WEIGHT:
            raise CheckpointError(
                f"{self.name}: its weights are stored as [inputs, outputs], which only plain ones can be"
            )
        pieces: list[Piece] = []
        shape: list[int] = []
        offset = rest = 0
        for number, part in enumerate(parts):
            name = f"{(self / part.name).name}.{tensor.suffix}"
            index = number if tensor.output_axis is None and len(parts) > 1 else None
            for span in part.spans if tensor.output_axis is not None else part.spans[:1]:
                full, region = _stored_region(tensor, part.total, span, inputs, reads, name)
                target = list(_at_origin(region))
                shape = [place.stop for place in target]
                if tensor.output_axis is not None:
                    width = shape[tensor.output_axis]
                    target[tensor.output_axis] = slice(offset, offset + width)
                    offset += width
                if elsewhere:
                    region, target = (slice(0, 0),), [slice(0, 0)]  # nothing of it, but the checkpoint may have it
                if tensor is not BIAS or part.biased:
                    step = -1 if across else 1
                    pieces.append(
                        Piece(name, full[::step], region[::step], tuple(target[::step]), index, transposed=across)
                    )
        if tensor.output_axis is not None:
            rest = 0 if held is None else held - parts[0].width
            shape[tensor.output_axis] = offset + rest
        elif len(parts) > 1:
            shape = [len(parts), *shape]
        padded = elsewhere or rest > 0 or (any(not part.biased for part in parts) and tensor is BIAS)
        return self.declare(
            shape, pieces, dtype=tensor.dtype, padded=padded, optional=tensor.optional, uniform=tensor.uniform
        )


def _stored_region(
    tensor: StoredTensor,
    outputs: int,
    span: tuple[int, int],
    inputs: int,
    reads: tuple[int, int],
    name: str,
) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """The full shape of a stored tensor of so many outputs, and the region of it that one rank reads."""
    axes: dict[int, tuple[int, int, int]] = {}
    if tensor.output_axis is not None:
        axes[tensor.output_axis] = _elements(outputs, *span, tensor.per_output, name)
    if tensor.input_axis is not None:
        axes[tensor.input_axis] = _elements(inputs, *reads, tensor.per_input, name)
    others = (axis for axis in range(len(axes) + len(tensor.sizes)) if axis not in axes)
    axes |= {axis: (size, 0, size) for axis, size in zip(tuple(others), tensor.sizes, strict=True)}
    order = sorted(axes)
    return tuple(axes[axis][0] for axis in order), tuple(slice(axes[axis][1], axes[axis][2]) for axis in order)


def _elements(total: int, start: int, stop: int, per: int | Fraction, name: str) -> tuple[int, int, int]:
    """Features -> elements that each cover ``per`` of them; a shard must begin and end between elements."""
    if start % per or (stop % per and stop != total):
        raise ConfigError(
            f"{name}: features {start} to {stop} can't be taken from elements that cover {per} each; "
            "choose a smaller tensor_parallel_size",
            param="tensor_parallel_size",
        )
    return -(-total // per), start // per, -(-stop // per)


def _region(shape: Sequence[int], shards: Mapping[int, tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(*shards.get(axis, (0, size))) for axis, size in enumerate(shape))


def _at_origin(region: Sequence[slice]) -> tuple[slice, ...]:
    return tuple(slice(0, part.stop - part.start) for part in region)
