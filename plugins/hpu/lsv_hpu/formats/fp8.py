"""Linear layers of weights in e4m3: activations become e4m3 too, with a scale for each token as it comes."""

from __future__ import annotations

import logging
from functools import cache

import torch

from lsv.offers import OpSpec
from lsv.ops import Kernel
from lsv.weights.codebook import CodedLinear
from lsv_hpu import selection
from lsv_hpu.devices import LARGEST_FP8
from lsv_hpu.vendor_ops import FP8, VendorOps

_log = logging.getLogger(__name__)

_NOTHING = 1e-12
_FULL = LARGEST_FP8["gaudi3"]
"""The largest number of the codes that a checkpoint has."""


class DynamicFp8(Kernel):
    """``lsv.weights.codebook.CodedLinear`` over the codes of e4m3 with a scale for each output; x [..., inputs].

    Where a device's range is the narrower one, weights are halved and their scales doubled: below 2⁻⁶ they may then be
    off by half of the smallest number.
    """

    def __init__(self, module: CodedLinear, spec: OpSpec) -> None:
        self._module, self._ops = module, selection.ops()
        _tell()

    def pack(self) -> None:
        codes, scales = self._module.release("codes").view(FP8), self._module.release("scales")[:, 0]
        if self._ops.largest_fp8 < _FULL:
            codes, scales = (codes.float() / 2).to(FP8), scales * 2
        self._weight = self._module.keep("fp8_weight", codes)
        self._scales = self._module.keep("fp8_scales", scales.contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        coded, scales = quantise_rows(rows, self._ops)
        y = self._ops.gemm_fp8(coded, self._weight, x.dtype, scales, self._scales, self._module.bias)
        return y.view(*x.shape[:-1], -1)


def quantise_rows(x: torch.Tensor, ops: VendorOps) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, K] -> e4m3 [T, K] and scales float32 [T, 1]: the largest number of a row becomes the device's largest."""
    scales = x.abs().amax(-1, keepdim=True).float().clamp_min(_NOTHING) / ops.largest_fp8
    return ops.to_fp8(x, scales.reciprocal()), scales


@cache
def _tell() -> None:
    """Once in a process: a format whose note says that activations stay as they are is computed otherwise here."""
    _log.info("layers with weights in fp8 round their activations to fp8 by token, as Gaudi multiplies two of a kind")


def why_not_fp8(spec: OpSpec) -> str | None:
    """None where ``fp8_gemm_v2`` serves a layer of codes."""
    if "float8_e4m3fn" not in spec.flags:
        return "codes are not e4m3"
    if spec.shape["group"] or spec.flags & {"offsets", "ordered"}:
        return "there is not one scale for each output"
    return None
