"""Linear layers over plain, coded and integer weights."""

from __future__ import annotations

from typing import ClassVar

import torch

from lsv.offers import OpSpec
from lsv.ops import Kernel
from lsv.weights.quantizer import Linear
from lsv_triton.gemm.product import product
from lsv_triton.gemm.weights import Stack


class TritonLinear(Kernel):
    """``x @ weights.T + bias`` for x [..., K], whatever the format of the weights. A row's result has the same bits in
    any company.
    """

    rounds: ClassVar[bool] = False

    def __init__(self, module: Linear, spec: OpSpec) -> None:
        self._stack = Stack(module, (module,), rounds=self.rounds)

    def pack(self) -> None:
        self._stack.take(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        return product(rows, self._stack).view(*x.shape[:-1], self._stack.outputs)
