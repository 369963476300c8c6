"""``sym_int4``: int4 weights with one scale per output and group of inputs, and a head in 8 bits.

Rows are quantised to int8 with one scale per group; products are exact within a group, and groups are summed in float
(W4A8).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import msgspec
import torch
from torch import nn

from lsv.offers import OpSpec
from lsv_quant.online.online import Online, OnlineLinear
from lsv_quant.online.online_coded import make_head
from lsv_quant.rounding import RoundInt4, add_groups, from_nibbles, in_groups, to_int8
from lsv_runtime.weights.quantizer import LinearLayer, PerLayer, Quantizer

GROUPS = (32, 64, 128)
"""Inputs that may share a scale: kernels are made for these."""
SMALL = 1024
"""Features of states up to which groups are small: models of fewer than about a billion weights have no more."""


class Int4Linear(OnlineLinear):
    """nibbles uint8 [outputs, ceil(inputs / 2)] of code + 8, even inputs in the low half; scales float32 [outputs,
    groups].

    ``group`` inputs share a scale.
    """

    op: ClassVar[str] = "linear.int4"
    format: ClassVar[str] = "int4"
    row_invariant: ClassVar[bool] = True
    nibbles: torch.Tensor
    scales: torch.Tensor

    def __init__(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter], group: int) -> None:
        super().__init__(layer, tensors)
        self.group = group
        self.round = RoundInt4(layer.dtype, group)

    def spec(self) -> OpSpec:
        spec = super().spec()
        return msgspec.structs.replace(spec, shape={**spec.shape, "bits": 4, "group": self.group})

    def filled(self) -> None:
        weight = self.release("weight")
        outputs, inputs = weight.shape
        nibbles = weight.new_empty((outputs, -(-inputs // 2)), dtype=torch.uint8)
        scales = weight.new_empty((outputs, -(-inputs // self.group)), dtype=torch.float32)
        self.keep("nibbles", self.round(weight, nibbles, scales))
        self.keep("scales", scales)

    def dequantise(self, rows: slice | torch.Tensor = slice(None)) -> torch.Tensor | None:
        groups = in_groups(from_nibbles(self.nibbles[rows], self.layer.inputs), self.group)
        return (groups * self.scales[rows][..., None]).flatten(-2)[:, : self.layer.inputs]

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        codes, row_scales = to_int8(in_groups(x, self.group))
        weight = in_groups(from_nibbles(self.nibbles, self.layer.inputs), self.group)
        return self.finish(add_groups(codes, row_scales, weight, self.scales), x.dtype)


def choose_group(layer: LinearLayer) -> int:
    """32 inputs in small models, which tolerate rounding badly, and 64 in others.

    That is told by the states that a layer reads or adds to, of all ranks together, so that ranks choose alike.
    """
    outputs, inputs = layer.stored[0] if layer.stored else (layer.width, layer.inputs)
    return 32 if (outputs if layer.role == "row" else inputs) <= SMALL else 64


class BySize(PerLayer):
    """Groups by the layer, see ``choose_group``."""

    name = "sym_int4"

    def choose(self, layer: LinearLayer) -> Quantizer:
        return _make(self.name, choose_group(layer), {})

    def table(self, layer: LinearLayer) -> Quantizer | None:
        return self.choose(layer)


def _make(name: str, group: int, quantization_config: Mapping[str, Any]) -> Online:
    return Online(name, partial(Int4Linear, group=group), make_head)


def make_by_size(quantization_config: Mapping[str, Any]) -> Quantizer:
    return BySize()


make_32 = partial(_make, "sym_int4_g32", 32)
make_64 = partial(_make, "sym_int4_g64", 64)
make_128 = partial(_make, "sym_int4_g128", 128)
