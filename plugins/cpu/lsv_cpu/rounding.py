"""Quantising weights while a model is loaded, by native/quantise.cpp instead of plain torch."""

from __future__ import annotations

import torch

from lsv.offers import OpSpec
from lsv.ops import Bindable, Kernel
from lsv_cpu import native
from lsv_cpu.kernels import selected_library


class RoundInt8(Kernel):
    """weight [outputs, inputs] -> int8 codes and float32 scales [outputs], written into ``codes`` and ``scales``."""

    def __init__(self, module: Bindable, spec: OpSpec) -> None:
        self._library = selected_library()

    def forward(self, weight: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        weight = weight.contiguous()
        self._library.lsv_quantise_int8(
            native.DTYPES[weight.dtype], weight.data_ptr(), *weight.shape, codes.data_ptr(), scales.data_ptr()
        )
        return codes


class RoundInt4(Kernel):
    """weight [outputs, inputs] -> nibbles uint8 [outputs, ceil(inputs / 2)] and float32 scales [outputs, groups]."""

    def __init__(self, module: Bindable, spec: OpSpec) -> None:
        self._library, self._group = selected_library(), spec.shape["group"]

    def forward(self, weight: torch.Tensor, nibbles: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        weight = weight.contiguous()
        self._library.lsv_quantise_int4(
            native.DTYPES[weight.dtype],
            weight.data_ptr(),
            *weight.shape,
            self._group,
            nibbles.data_ptr(),
            scales.data_ptr(),
        )
        return nibbles
