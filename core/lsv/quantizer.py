"""The seam to weight formats: a quantizer describes a linear layer's stored tensors, core cuts and fuses them.

Because each tensor says which axis holds outputs, which inputs, and how many features one element covers, one function
(``lsv.nn.weights.Weights.take_stored``) shards and fuses every format. Unquantised is a quantizer too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import nn
from torch.nn import functional

from lsv.offers import OpSpec
from lsv.ops import Bindable, dtype_name

Role = Literal["column", "row", "head"]


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear layer on one rank: ``outputs`` per fused part (``q, k, v``), ``name`` its place in the checkpoint."""

    name: str
    role: Role
    inputs: int
    outputs: tuple[int, ...]
    bias: bool
    dtype: torch.dtype

    @property
    def width(self) -> int:
        """Outputs of all parts together."""
        return sum(self.outputs)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a linear layer as a checkpoint stores it, under ``<layer>.<suffix>``.

    ``output_axis`` and ``input_axis`` are the axes that run over outputs and inputs, None where there is
    none; one element covers ``per_output`` outputs and ``per_input`` inputs (8 for int4 packed into int32,
    the group size for scales). ``dtype`` None means floating point, cast to the model's dtype. A tensor
    without an output axis belongs to a whole part: fused parts are then stacked along a new first axis.
    """

    suffix: str
    dtype: torch.dtype | None = None
    output_axis: int | None = None
    input_axis: int | None = None
    per_output: int = 1
    per_input: int = 1


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


def joint_format(*linears: Linear) -> str:
    """The format that all of them have, or ``"mixed"``."""
    formats = {linear.format for linear in linears}
    return formats.pop() if len(formats) == 1 else "mixed"


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
