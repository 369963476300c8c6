"""A strict fake of PyTorch's int4 product for XPU, which no other build has."""

from __future__ import annotations

from typing import ClassVar

import torch

from lsv_runtime.emulation.fakes import StrictFake
from lsv_runtime.emulation.vendors.checks import check_devices, check_tensor, require
from lsv_runtime.weights.codebook import from_nibbles


class FakeTorchInt4(StrictFake):
    """Answers what ``TorchInt4`` calls, as torch 2.13 does on XPU."""

    library, computes = "torch's int4 product for XPU", True
    opaque: ClassVar[tuple[str, ...]] = ()

    def convert_weight(self, nibbles: torch.Tensor) -> torch.Tensor:
        self.record("convert_weight", tuple(nibbles.shape))
        check_tensor("weight", nibbles, [torch.uint8], [None, None])
        require(nibbles.shape[1] % 4 == 0, "the number of inputs is not a multiple of 8")
        return nibbles.view(torch.int32).clone()

    def int4_mm(
        self, x: torch.Tensor, weight: torch.Tensor, group: int, scales: torch.Tensor, zeros: torch.Tensor
    ) -> torch.Tensor:
        self.record("int4_mm", tuple(x.shape))
        check_tensor("A", x, [torch.float16, torch.bfloat16], [None, weight.shape[1] * 8])
        inputs, outputs = x.shape[1], weight.shape[0]
        check_tensor("B", weight, [torch.int32], [outputs, inputs // 8])
        require(group > 1 and group % 32 == 0, f"qGroupSize is {group}, no multiple of 32")
        check_tensor("qScale", scales, [x.dtype], [inputs // group, outputs])
        check_tensor("qZeros", zeros, [torch.int8], [inputs // group, outputs])
        check_devices(A=x, B=weight, qScale=scales, qZeros=zeros)
        codes = from_nibbles(weight.view(torch.uint8)).float()
        scale, zero = (part.float().repeat_interleave(group, dim=0).t() for part in (scales, zeros))
        return (x.float() @ ((codes - zero) * scale).t()).to(x.dtype)
