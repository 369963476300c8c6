"""int8 weights with one scale per output, made from a plain checkpoint while it is loaded.

What a code means is all there is to say: kernels for coded weights serve the format wherever a platform has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lsv_runtime.weights.codebook import Codebook, CodedLinear
from lsv_runtime.weights.quantizer import WEIGHT, Linear, LinearLayer, StoredTensor

INT8 = Codebook(tuple(float(code - 128) for code in range(256)))


class SampleLinear(CodedLinear):
    def __init__(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> None:
        super().__init__(layer, INT8, tensors.get("bias"))
        self.plain = tensors["weight"]

    def filled(self) -> None:
        weight = self.release("plain").float()
        scales = (weight.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-12)
        self.hold((weight / scales + 128).round().to(torch.uint8), scales)


class SampleInt8:
    name = "sample-int8"

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return (WEIGHT,)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return SampleLinear(layer, tensors)


def make(quantization_config: Mapping[str, Any]) -> SampleInt8:
    return SampleInt8()
