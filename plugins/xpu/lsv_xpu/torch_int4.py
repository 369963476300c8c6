"""The int4 product of PyTorch's own XPU build, and linear layers over it."""

from __future__ import annotations

from typing import Any

import torch

from lsv.offers import OpSpec
from lsv_xpu import libraries
from lsv_xpu.int4_weights import MIDDLE, Int4Linear, take_int4, why_not_int4


class TorchInt4:
    """The ops as torch 2.13 has them: schemas of its ``native_functions.yaml``, layouts of ``mkldnn/xpu/Blas.cpp`` and
    of intel/torch-xpu-ops' ``WeightInt4Pack.cpp``.
    """

    def convert_weight(self, nibbles: torch.Tensor) -> torch.Tensor:
        """nibbles uint8 [N, K / 2] -> int32 [N, K / 8]. The number of inner tiles plays no part on XPU."""
        return torch.ops.aten._convert_weight_to_int4pack(nibbles, 2)  # type: ignore[no-any-return]

    def int4_mm(
        self, x: torch.Tensor, weight: torch.Tensor, group: int, scales: torch.Tensor, zeros: torch.Tensor
    ) -> torch.Tensor:
        """x [T, K], dense -> [T, N]; scales [K / group, N] in x's dtype, zeros int8 [K / group, N]."""
        return torch.ops.aten._weight_int4pack_mm_with_scales_and_zeros(  # type: ignore[no-any-return]
            x, weight, group, scales, zeros
        )


class TorchInt4Linear(Int4Linear):
    """``linear.int4`` and evenly ``linear.coded`` layers of 4 bits."""

    def __init__(self, module: Any, spec: OpSpec) -> None:
        super().__init__(module, spec)
        self._library: TorchInt4 = libraries.obtain(libraries.TORCH_INT4)

    def pack(self) -> None:
        module, weights = self._module, take_int4(self._module, range(-128, 128))
        zeros = weights.zeros
        if zeros is None:
            zeros = torch.full_like(weights.scales, MIDDLE, dtype=torch.int8)
        self._weight = module.keep("packed", self._library.convert_weight(weights.nibbles))
        self._scales = module.keep("packed_scales", weights.scales.to(module.layer.dtype))
        self._zeros = module.keep("packed_zeros", zeros)
        self.keep_rest(weights)

    def multiply(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._order is not None:
            rows = rows.index_select(1, self._order)
        y = self._library.int4_mm(rows, self._weight, self._group, self._scales, self._zeros)
        return y if bias is None else y + bias


def why_not_torch_int4(spec: OpSpec) -> str | None:
    missing = libraries.why_not(libraries.TORCH_INT4)
    return why_not_int4(spec) if missing is None else f"lacks {missing}"
