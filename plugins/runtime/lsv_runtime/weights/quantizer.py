"""The seam to weight formats: a quantizer describes a linear layer's stored tensors, core shards and fuses them.

Because each tensor says which axis holds outputs, which inputs, and how many features one element covers, one function
(``lsv_runtime.weights.place.Weights.take_stored``) shards and fuses every format. Unquantised is a quantizer too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import nn

from lsv.offers import OpSpec
from lsv_base.errors import CheckpointError
from lsv_base.untrusted.patterns import Pattern, Patterns
from lsv_runtime import products
from lsv_runtime.ops import LOOKED_UP, Bindable, GatedKernel, TableKernel, dtype_name
from lsv_runtime.weights.naming import Prefixes, spellings

Role = Literal["column", "row", "head"]
T = TypeVar("T")
_CHUNK = 1 << 18
"""Weights measured at a time."""
_LOOKED_UP = 1 << 22
"""Weights decoded at a time to look rows up."""


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear layer on one rank."""

    name: str
    """Its place in the checkpoint."""
    role: Role
    """How it is sharded: ``column`` by outputs, ``row`` by inputs; ``head`` makes logits."""
    inputs: int
    outputs: tuple[int, ...]
    """Outputs of each fused part, such as q, k and v."""
    bias: bool
    """Whether the layer adds a bias."""
    dtype: torch.dtype
    """The model's dtype, which inputs and outputs have."""
    parts: tuple[str, ...] = ()
    """Full names of the fused parts, in order; empty for a layer that is not fused."""
    reads: tuple[int, int] | None = None
    """(start, stop) of its inputs among those stored; None where it has them all."""
    stored_bias: bool = False
    """Whether the checkpoint stores a bias, even if another module adds it."""
    prefixes: Prefixes = ()
    """What checkpoints write instead of the beginnings of the model's names."""
    spans: tuple[tuple[tuple[int, int], ...], ...] = ()
    """Of each fused part, the runs [start, stop) of its outputs as stored that are on this rank."""
    stored: tuple[tuple[int, int], ...] = ()
    """Of each fused part, how many outputs and inputs are stored."""
    looked_up: bool = False
    """Whether its rows are embeddings, too, as those of a tied head are. A format may then choose a finer form."""

    @property
    def width(self) -> int:
        """Outputs of all parts together."""
        return sum(self.outputs)

    @property
    def part_names(self) -> tuple[str, ...]:
        """Full names of the fused parts; of a layer that is not fused, its own name."""
        return self.parts or (self.name,)

    def spellings(self, part: str) -> tuple[str, ...]:
        """All full names by which a checkpoint's configuration may mean a part, the model's own first."""
        return spellings(part, self.prefixes)

    def tensor_name(self, suffix: str) -> str:
        """What a stored tensor is called in the checkpoint, for a message; all names of a fused layer."""
        return ", ".join(f"{part}.{suffix}" for part in self.part_names)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a linear layer as a checkpoint stores it, under ``<layer>.<suffix>``."""

    suffix: str
    dtype: torch.dtype | None = None
    """None takes floating point and casts it to the model's dtype; float32 takes floating point of any size and keeps
    it exact; any other dtype must be the stored one."""
    output_axis: int | None = None
    """The axis that runs over outputs. A tensor without one belongs to a whole part: the tensors of fused parts are
    then stacked along a new first axis."""
    input_axis: int | None = None
    """The axis that runs over inputs, None where there is none."""
    per_output: int | Fraction = 1
    """How many outputs one element covers."""
    per_input: int | Fraction = 1
    """How many inputs one element covers: 8 for int4 packed into int32, 32/3 for three bits, the group size for scales.
    """
    sizes: tuple[int, ...] = ()
    """Sizes of the axes that run over neither, in order."""
    optional: bool = False
    """Whether a checkpoint may lack it; it then stays on meta."""
    uniform: bool = False
    """Whether a checkpoint may hold a single number that stands for all."""


WEIGHT = StoredTensor("weight", output_axis=0, input_axis=1)
BIAS = StoredTensor("bias", output_axis=0)


class Linear(Bindable):
    """A linear layer of some format: x [..., inputs] -> [..., outputs]. Subclasses are the formats."""

    op: ClassVar[str] = "linear"
    format: ClassVar[str] = "plain"
    made_while_loading: ClassVar[bool] = False
    """Whether ``filled`` does nothing but replace the plain weight by the format's own tensors, and looks at no values
    on the way: memory is then planned for what a copy on meta holds after it.
    """
    looked_up: bool = False
    """Whether an embedding looks its rows up in the layer's weights, and has no others."""
    measured: bool = False
    """Whether the sum of each output's squared weights is kept as the buffer ``squares``, float32 [outputs]."""

    def __init__(self, layer: LinearLayer) -> None:
        super().__init__()
        self.layer = layer

    @property
    def serves_tokens(self) -> bool:
        """Whether a tied embedding may look up its rows here: ``dequantise`` takes ids, and 8 bits are left of them.

        Otherwise the embedding keeps a plain copy.
        """
        return False

    def dequantise(self, rows: slice | torch.Tensor = slice(None)) -> torch.Tensor | None:
        """The weights of some outputs as the layer computes with them, floating point [outputs, inputs].

        ``rows`` may be ids int64 [T] where rows are looked up. To be asked once they are filled and before a kernel
        packs them. None where a format does not say.
        """
        return None

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of a layer that is ``looked_up``, in its dtype: ids int64 [T] of outputs -> weights [T, inputs]."""
        if isinstance(self.kernel, TableKernel):
            return self.kernel.look_up(ids)
        pieces = [self.dequantise(some) for some in torch.split(ids, max(1, _LOOKED_UP // self.layer.inputs))]
        found = [piece.to(self.layer.dtype) for piece in pieces if piece is not None]
        return found[0] if len(found) == 1 else torch.cat(found)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """What the layer alone makes of x, also where its kernel goes on with that."""
        return self.kernel.ungated(x) if isinstance(self.kernel, GatedKernel) else self(x)

    def unrounded(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's results for what is no activation it was calibrated for, such as rows of an identity."""
        return self(x)  # type: ignore[no-any-return]

    def pack(self) -> None:
        if self.measured:
            self._measure()
        super().pack()

    def _measure(self) -> None:
        step = max(1, _CHUNK // self.layer.inputs)
        squares: list[torch.Tensor] = []
        for first in range(0, self.layer.width, step):
            weights = self.dequantise(slice(first, first + step))
            if weights is None:
                return
            squares.append(torch.linalg.vector_norm(weights, dim=1, dtype=torch.float32).square())
        self.keep("squares", torch.cat(squares))

    def spec(self) -> OpSpec:
        flags = {self.layer.role} | ({"bias"} if self.layer.bias else set())
        shape = {"in": self.layer.inputs, "out": self.layer.width}
        flags |= {LOOKED_UP} if self.looked_up else set()
        return OpSpec(self.op, dtype_name(self.layer.dtype), self.format, shape, frozenset(flags))


def joint_format(*formats: str) -> str:
    """The format of an op over layers of these formats: ``"plain"`` or, where they differ, ``"coded+plain"``."""
    return "+".join(sorted({name for format in formats for name in format.split("+")}))


class Quantizer(Protocol):
    """A weight format. Made once per model by ``load(quantization_config)``; an online one gets ``{}``."""

    name: str

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        """The tensors a checkpoint holds for a layer, apart from its bias."""
        ...

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        """The module that computes it. ``tensors`` are on meta, by suffix, sharded and fused, with ``"bias"`` if there
        is one.

        The module's op should be ``linear.<format>``. An online quantizer turns the plain weight into its own form in
        ``Bindable.filled``.
        """
        ...


@runtime_checkable
class TableQuantizer(Quantizer, Protocol):
    """A weight format of checkpoints, or made of plain weights, that may hold the embeddings of tokens, too."""

    def table(self, layer: LinearLayer) -> Quantizer | None:
        """The format of a table of embeddings, given as a layer with a row for each token; None for plain rows.

        The layer's ``dequantise`` must take ids.
        """
        ...


class PlainLinear(Linear):
    """``x @ weight.T + bias``; weight [outputs, inputs]."""

    def __init__(self, layer: LinearLayer, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__(layer)
        self.weight = weight
        self.bias = bias

    def dequantise(self, rows: slice | torch.Tensor = slice(None)) -> torch.Tensor | None:
        return self.weight[rows]

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return products.linear(x, self.weight, self.bias)


class Unquantised:
    """Weights as they are, in the model's dtype."""

    name = "none"

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return (WEIGHT,)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return PlainLinear(layer, tensors["weight"], tensors.get("bias"))


class PerLayer(ABC):
    """A weight format that differs from layer to layer."""

    name: str

    @abstractmethod
    def choose(self, layer: LinearLayer) -> Quantizer:
        """The format of a layer."""

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return self.choose(layer).stored(layer)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return self.choose(layer).build(layer, tensors)


def per_part(layer: LinearLayer, choose: Callable[[Sequence[str]], T]) -> T:
    """What ``choose`` answers for each part of a layer, given all spellings of its name, the model's own first.

    Raises ``CheckpointError`` when the answers differ.
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


class WithIgnored(PerLayer):
    """A weight format that leaves some layers unquantised: those that ``is_ignored`` finds in ``names``."""

    def __init__(self, quantizer: Quantizer, names: Iterable[str]) -> None:
        self.name = quantizer.name
        self._quantizer, self._names = quantizer, compile_names(names, Patterns("the layers that stay unquantised"))

    def choose(self, layer: LinearLayer) -> Quantizer:
        return Unquantised() if is_ignored(layer, self._names) else self._quantizer

    def table(self, layer: LinearLayer) -> Quantizer | None:
        if not isinstance(self._quantizer, TableQuantizer) or is_ignored(layer, self._names):
            return None
        return self._quantizer.table(layer)


class OfExperts(PerLayer):
    """A weight format of experts, which leaves all other layers unquantised."""

    def __init__(self, quantizer: Quantizer, name: str = "") -> None:
        self.name = name or quantizer.name
        self._quantizer = quantizer

    def choose(self, layer: LinearLayer) -> Quantizer:
        experts = all("experts" in name.split(".") for name in layer.part_names)
        return self._quantizer if experts else Unquantised()


LayerName = str | Pattern
"""A layer's full name, consecutive components of it (``lm_head``, ``mlp.gate``, ``model.layers.0``), or a regular
expression that matches from the beginning of the full name."""


def compile_names(names: Iterable[str], patterns: Patterns, key: str = "") -> tuple[LayerName, ...]:
    """Names of layers as a config lists them under ``key``: ``re:`` begins a regular expression.

    Raises ``CheckpointError`` for an expression that is malformed or can't be bounded.
    """
    return tuple(patterns.compile(name.removeprefix("re:"), key) if name.startswith("re:") else name for name in names)


def is_ignored(layer: LinearLayer, names: Iterable[LayerName]) -> bool:
    """Whether one of ``names`` matches the layer under any of the spellings that checkpoints of its family use.

    Raises ``CheckpointError`` where only some parts of a fused layer match.
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


def _means(name: LayerName, part: str) -> bool:
    return within(name, part) if isinstance(name, str) else name.match(part)


def within(name: str, whole: str) -> bool:
    """Whether the components of ``name`` are consecutive components of ``whole``."""
    return f".{name}." in f".{whole}."
