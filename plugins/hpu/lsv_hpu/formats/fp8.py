"""Linear layers of weights in e4m3: activations become e4m3 too, with a scale for each token as it comes, or by the
scale that a checkpoint stores.
"""

from __future__ import annotations

import logging
import math
from functools import cache

import torch

from lsv.offers import OpSpec
from lsv_hpu import selection
from lsv_hpu.devices import LARGEST_FP8
from lsv_hpu.vendor_ops import FP8, VendorOps
from lsv_runtime.ops import Kernel
from lsv_runtime.weights.codebook import CodedLinear
from lsv_runtime.weights.static_coded import LARGEST_INPUT, RoundingKernel, StaticCodedLinear

_log = logging.getLogger(__name__)

_NOTHING = 1e-12
_FULL = LARGEST_FP8["gaudi3"]
"""The largest number of the codes that a checkpoint has."""


class DynamicFp8(Kernel):
    """``lsv_runtime.weights.codebook.CodedLinear`` over the codes of e4m3 with a scale for each output.

    x is [..., inputs].

    Where a device's range is the narrower one, weights are halved and their scales doubled: below 2⁻⁶ they may then be
    off by half of the smallest number.
    """

    def __init__(self, module: CodedLinear, spec: OpSpec) -> None:
        self._module, self._ops = module, selection.ops()
        _tell()

    def pack(self) -> None:
        self._weight, self._scales = _pack_weights(self._module, self._ops)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        coded, scales = quantise_rows(rows, self._ops, self._module.input_bound)
        y = self._ops.gemm_fp8(coded, self._weight, x.dtype, scales, self._scales, self._module.bias)
        return y.view(*x.shape[:-1], -1)


class StaticFp8(RoundingKernel):
    """``lsv_runtime.weights.static_coded.StaticCodedLinear`` over the codes of e4m3 with a scale for each output.

    Where a device's range is the narrower one, codes of activations are halved as those of weights are.
    """

    def __init__(self, module: StaticCodedLinear, spec: OpSpec) -> None:
        self._module, self._ops = module, selection.ops()
        self._narrow = self._ops.largest_fp8 < _FULL

    def pack(self) -> None:
        module = self._module
        self._weight, self._scales = _pack_weights(module, self._ops)
        self._limit = module.keep("input_limit", module.input_scale * LARGEST_INPUT)
        self._unit = module.keep("input_unit", module.input_scale * (2 if self._narrow else 1))
        self._factor = module.keep("input_factor", self._unit.reciprocal())
        self._one = module.keep("one", torch.ones_like(self._unit))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._narrow:  # whose largest number, doubled, is beyond that of the checkpoint
            x = torch.minimum(torch.maximum(x.float(), -self._limit), self._limit).to(x.dtype)
        return self._multiply(x, self._factor, self._unit)

    def unrounded(self, x: torch.Tensor) -> torch.Tensor:
        """There is no product of other numbers than e4m3: only those of an identity are exact."""
        return self._multiply(x, self._one, self._one)

    def _multiply(self, x: torch.Tensor, factor: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
        coded = self._ops.to_fp8(x.reshape(-1, x.shape[-1]), factor)
        y = self._ops.gemm_fp8(coded, self._weight, x.dtype, unit, self._scales, self._module.bias)
        return y.view(*x.shape[:-1], -1)


def _pack_weights(module: CodedLinear, ops: VendorOps) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 [outputs, inputs] and scales [outputs], which fit the device."""
    codes, scales = module.release("codes").view(FP8), module.release("scales")[:, 0]
    if ops.largest_fp8 < _FULL:
        codes, scales = (codes.float() / 2).to(FP8), scales * 2
    return module.keep("fp8_weight", codes), module.keep("fp8_scales", scales.contiguous())


def quantise_rows(x: torch.Tensor, ops: VendorOps, bound: float = math.inf) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, K] -> e4m3 [T, K] and scales float32 [T, 1]: the largest number of a row becomes the device's largest, and
    what is beyond ``bound`` is clamped to it.
    """
    scales = x.abs().amax(-1, keepdim=True).float().clamp(_NOTHING, bound) / ops.largest_fp8
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
