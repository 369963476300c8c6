"""Linear layers over plain, coded and integer weights."""

from __future__ import annotations

from typing import ClassVar

import torch

from lsv.offers import OpSpec
from lsv.ops import TableKernel
from lsv.weights.codebook import CodedLinear
from lsv.weights.quantizer import Linear
from lsv_triton.gemm.product import product
from lsv_triton.gemm.weights import Stack, codes_of


class TritonLinear(TableKernel):
    """``x @ weights.T + bias`` for x [..., K], whatever the format of the weights. A row's result has the same bits in
    any company. Rows are looked up of codes and of int8.
    """

    rounds: ClassVar[bool] = False

    def __init__(self, module: Linear, spec: OpSpec) -> None:
        self._module, self._stack = module, Stack(module, (module,), rounds=self.rounds)

    def pack(self) -> None:
        self._stack.take(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        return product(rows, self._stack).view(*x.shape[:-1], self._stack.outputs)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        dtype, packed = self._module.layer.dtype, self._stack.packed
        scales, offsets = (None if one is None else one[0][:, ids].T for one in (packed.scales, packed.offsets))
        assert scales is not None, "plain weights are not looked up here"
        codes = codes_of(packed, ids)
        if isinstance(self._module, CodedLinear):
            return self._module.decode_codes(codes, scales, offsets).to(dtype)
        return (codes.float() * scales).to(dtype)
