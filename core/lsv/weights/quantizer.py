"""The seam to weight formats: a quantizer describes a linear layer's stored tensors, core cuts and fuses them.

Because each tensor says which axis holds outputs, which inputs, and how many features one element covers, one function
(``lsv.weights.place.Weights.take_stored``) shards and fuses every format. Unquantised is a quantizer too.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeVar

import torch
from torch import nn
from torch.nn import functional

from lsv.errors import CheckpointError
from lsv.offers import OpSpec
from lsv.ops import Bindable, dtype_name
from lsv.weights.naming import Prefixes, spellings

Role = Literal["column", "row", "head"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear layer on one rank: ``outputs`` per fused part (``q, k, v``), ``name`` its place in the checkpoint.

    ``parts`` are the full names of what is fused, in order; of a layer that is not, its own. ``reads`` = (start, stop)
    are its inputs among all that are stored, None where it has them all. ``stored_bias`` says that a checkpoint has a
    bias there, be it that somebody else adds it. ``prefixes`` are those that checkpoints have instead of the model's.
    """

    name: str
    role: Role
    inputs: int
    outputs: tuple[int, ...]
    bias: bool
    dtype: torch.dtype
    parts: tuple[str, ...] = ()
    reads: tuple[int, int] | None = None
    stored_bias: bool = False
    prefixes: Prefixes = ()

    @property
    def width(self) -> int:
        """Outputs of all parts together."""
        return sum(self.outputs)

    @property
    def part_names(self) -> tuple[str, ...]:
        """``parts``, which a layer that is not fused may leave to its name."""
        return self.parts or (self.name,)

    def spellings(self, part: str) -> tuple[str, ...]:
        """All full names of a part that a checkpoint's configuration may mean it by, the model's own first."""
        return spellings(part, self.prefixes)

    def tensor_name(self, suffix: str) -> str:
        """What a stored tensor is called in the checkpoint, for a message; of a fused layer, those of all parts."""
        return ", ".join(f"{part}.{suffix}" for part in self.part_names)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a linear layer as a checkpoint stores it, under ``<layer>.<suffix>``.

    ``output_axis`` and ``input_axis`` are the axes that run over outputs and inputs, None where there is
    none; one element covers ``per_output`` outputs and ``per_input`` inputs (8 for int4 packed into int32,
    the group size for scales). ``dtype`` None means floating point, cast to the model's dtype; float32 means floating
    point of any size, kept as exact as it is; any other dtype must be the stored one. A tensor without an output axis
    belongs to a whole part: fused parts are then stacked along a new first axis. ``sizes`` are those of axes that run
    over neither, in order. One that is ``optional`` may be absent from a checkpoint and then stays on meta; of one that
    is ``uniform`` there may be a single number, which stands for all.
    """

    suffix: str
    dtype: torch.dtype | None = None
    output_axis: int | None = None
    input_axis: int | None = None
    per_output: int = 1
    per_input: int = 1
    sizes: tuple[int, ...] = ()
    optional: bool = False
    uniform: bool = False


WEIGHT = StoredTensor("weight", output_axis=0, input_axis=1)
BIAS = StoredTensor("bias", output_axis=0)


class Linear(Bindable):
    """A linear layer of some format: x [..., inputs] -> [..., outputs]. Subclasses are the formats."""

    op: ClassVar[str] = "linear"
    format: ClassVar[str] = "plain"

    def __init__(self, layer: LinearLayer) -> None:
        super().__init__()
        self.layer = layer

    def spec(self) -> OpSpec:
        flags = {self.layer.role} | ({"bias"} if self.layer.bias else set())
        shape = {"in": self.layer.inputs, "out": self.layer.width}
        return OpSpec(self.op, dtype_name(self.layer.dtype), self.format, shape, frozenset(flags))


def joint_format(*formats: str) -> str:
    """What an op over layers of these formats calls its own: ``"plain"`` or, where they differ, ``"coded+plain"``."""
    return "+".join(sorted({name for format in formats for name in format.split("+")}))


class Quantizer(Protocol):
    """A weight format. Made once per model by ``load(quantization_config)``; an online one gets ``{}``."""

    name: str

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        """The tensors a checkpoint holds for a layer, its bias apart."""
        ...

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        """The module that computes it. ``tensors`` are on meta, by suffix, fused and cut, with ``"bias"`` if there is
        one.

        The module's op should be ``linear.<format>``. An online quantizer turns the plain weight into its own form in
        ``Bindable.filled``.
        """
        ...


class PlainLinear(Linear):
    """``x @ weight.T + bias``; weight [outputs, inputs]."""

    def __init__(self, layer: LinearLayer, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__(layer)
        self.weight = weight
        self.bias = bias

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)


class Unquantised:
    """Weights as they are, in the model's dtype."""

    name = "none"

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return (WEIGHT,)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return PlainLinear(layer, tensors["weight"], tensors.get("bias"))


class ByLayer(ABC):
    """A weight format that is another one from layer to layer."""

    name: str

    @abstractmethod
    def choose(self, layer: LinearLayer) -> Quantizer:
        """The format of a layer."""

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return self.choose(layer).stored(layer)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return self.choose(layer).build(layer, tensors)


def of_parts(layer: LinearLayer, choose: Callable[[Sequence[str]], T]) -> T:
    """What ``choose`` makes of a layer's parts by all spellings of their names, the model's own first.

    Raises ``CheckpointError`` where that differs.
    """
    first, *others = layer.part_names
    chosen = choose(layer.spellings(first))
    for other in others:
        if choose(layer.spellings(other)) != chosen:
            raise CheckpointError(
                f"{first} and {other} are quantised differently, and both are computed as one layer: "
                "quantise all of its parts alike, or none"
            )
    return chosen


class Skipping(ByLayer):
    """A weight format that leaves the layers of some names as they are, see ``is_skipped``."""

    def __init__(self, quantizer: Quantizer, names: Iterable[str]) -> None:
        self.name = quantizer.name
        self._quantizer, self._names = quantizer, tuple(names)

    def choose(self, layer: LinearLayer) -> Quantizer:
        return Unquantised() if is_skipped(layer, self._names) else self._quantizer


def is_skipped(layer: LinearLayer, names: Iterable[str]) -> bool:
    """Whether one of ``names`` means the layer: its full name, some of its components in a row (``lm_head``,
    ``mlp.gate``, ``model.layers.0``), or ``re:`` and a regular expression that its full name begins with; in any of the
    spellings that checkpoints of its family have.

    Raises ``CheckpointError`` where only some of a fused layer's parts are meant.
    """
    names = tuple(names)
    parts = layer.part_names
    meant = [part for part in parts if any(_means(name, one) for name in names for one in layer.spellings(part))]
    if meant and len(meant) < len(parts):
        rest = ", ".join(part for part in parts if part not in meant)
        raise CheckpointError(
            f"{', '.join(meant)} is left unquantised but {rest} is not, and both are computed as one layer: "
            "leave all of them unquantised, or none"
        )
    return bool(meant)


def _means(name: str, part: str) -> bool:
    if name.startswith("re:"):
        return re.match(name.removeprefix("re:"), part) is not None
    return within(name, part)


def within(name: str, whole: str) -> bool:
    """Whether the components of a name stand in a row in those of another."""
    return f".{name}." in f".{whole}."
