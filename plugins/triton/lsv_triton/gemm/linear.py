"""Linear layers over plain, coded and integer weights."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch

from lsv.offers import OpSpec
from lsv_runtime.ops import TableKernel
from lsv_runtime.weights.codebook import CodedLinear
from lsv_runtime.weights.quantizer import Linear
from lsv_runtime.weights.static_coded import RoundingKernel
from lsv_triton.gemm.product import float_product, product
from lsv_triton.gemm.rounding import round_by_scale
from lsv_triton.gemm.weights import Stack, codes_of


class TritonLinear(TableKernel, RoundingKernel):
    """``x @ weights.T + bias`` for x [..., K], whatever the format of the weights. A row's result has the same bits in
    any company. Rows are looked up of codes and of int8. Activations are rounded by a scale where one is stored.
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

    def unrounded(self, x: torch.Tensor) -> torch.Tensor:
        """The weights' scales hold that of the activations, which results are divided by."""
        packed, native = self._stack.packed, self._stack.native
        assert packed.input_scales is not None, "asked only of layers with static activations"
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out = torch.empty((len(rows), self._stack.outputs), dtype=x.dtype, device=x.device)
        if native is not None:
            rows = round_by_scale(rows, torch.ones_like(packed.input_scales), native).view(native)
        float_product(rows, replace(packed, bias=None), out)
        y = out.float() / packed.input_scales[0]
        return (y if packed.bias is None else y + packed.bias[0].float()).to(x.dtype).view(*x.shape[:-1], -1)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        dtype, packed = self._module.layer.dtype, self._stack.packed
        scales, offsets = (None if one is None else one[0][:, ids].T for one in (packed.scales, packed.offsets))
        assert scales is not None, "plain weights are not looked up here"
        codes = codes_of(packed, ids)
        if isinstance(self._module, CodedLinear):
            return self._module.decode_codes(codes, scales, offsets).to(dtype)
        return (codes.float() * scales).to(dtype)
