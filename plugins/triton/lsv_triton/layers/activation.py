"""Gated activations without a tensor between the gate and the product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lsv.offers import OpSpec
from lsv_runtime.nn.mlp import ClampedGate, GatedActivation
from lsv_runtime.ops import Kernel
from lsv_triton.device_table import launch

_TANH = "gelu by tanh"
KINDS = {
    "silu": "silu", "gelu": "gelu", "gelu_fast": _TANH, "gelu_new": _TANH, "gelu_pytorch_tanh": _TANH,
    "quick_gelu": "quick_gelu", "relu": "relu", "relu2": "relu2", "clamped_swiglu": "clamped_swiglu",
}  # fmt: skip
"""The kernel's formula for each ``GatedActivation.name``."""


@triton.jit
def _gated(x, out, size, row_stride, alpha, limit, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < size
    gate = tl.load(x + row * row_stride + column, mask=there, other=0.0).to(tl.float32)
    up = tl.load(x + row * row_stride + size + column, mask=there, other=0.0).to(tl.float32)
    if KIND == "silu":
        gate = gate / (1.0 + tl.exp(-gate))
    elif KIND == "gelu":
        gate = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    elif KIND == "gelu by tanh":  # 0.5 * (1 + tanh(u)) = 1 / (1 + exp(-2 * u))
        twice = 1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate)
        gate = gate / (1.0 + tl.exp(-twice))
    elif KIND == "quick_gelu":
        gate = gate / (1.0 + tl.exp(-1.702 * gate))
    elif KIND == "relu":
        gate = tl.where(gate < 0.0, 0.0, gate)  # tl.maximum would turn NaN into 0
    elif KIND == "relu2":
        gate = tl.where(gate < 0.0, 0.0, gate * gate)
    else:
        tl.static_assert(KIND == "clamped_swiglu")
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up)) + 1.0
        gate = gate / (1.0 + tl.exp(-alpha * gate))
    tl.store(out + row * size + column, gate * up, mask=there)


class GatedProduct(Kernel):
    """``lsv_runtime.nn.mlp.GatedActivation``: [..., 2 * size] -> activation(first half) * second half: [..., size]."""

    def __init__(self, module: GatedActivation, spec: OpSpec) -> None:
        self._kind = KINDS[module.name]
        self._alpha, self._limit = (module.alpha, module.limit) if isinstance(module, ClampedGate) else (0.0, 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x if x.dim() == 2 and x.stride(1) == 1 else x.contiguous().view(-1, x.shape[-1])
        size = rows.shape[1] // 2
        out = torch.empty((*x.shape[:-1], size), dtype=x.dtype, device=x.device)
        tile = launch("gated", x.device)
        block = min(tile["elements"], triton.next_power_of_2(size))
        _gated[(len(rows), triton.cdiv(size, block))](
            rows, out, size, rows.stride(0), self._alpha, self._limit,
            KIND=self._kind, BLOCK=block, num_warps=tile.warps,
        )  # fmt: skip
        return out
