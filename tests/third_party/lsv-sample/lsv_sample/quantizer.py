"""int8 weights with one scale per output, made from a plain checkpoint while it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lsv.quantizer import WEIGHT, Linear, LinearLayer, StoredTensor


class SampleLinear(Linear):
    op = "linear.sample_int8"
    format = "sample_int8"

    def __init__(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> None:
        super().__init__(layer)
        self.weight, self.bias = tensors["weight"], tensors.get("bias")

    def filled(self) -> None:
        weight = self.release("weight").float()
        scale = (weight.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-12)
        self.keep("quantised", (weight / scale).round().to(torch.int8))
        self.keep("scale", scale)

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, (self.quantised * self.scale).to(x.dtype), self.bias)


class SampleInt8:
    name = "sample-int8"

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return (WEIGHT,)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return SampleLinear(layer, tensors)


def make(quantization_config: Mapping[str, Any]) -> SampleInt8:
    return SampleInt8()
