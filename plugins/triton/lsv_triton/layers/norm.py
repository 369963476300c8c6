"""Root mean square normalisation, alone and of a sum."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lsv.offers import OpSpec
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.ops import Kernel
from lsv_triton.device_table import launch


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(
    x,  # [tokens, heads, size]; the last axis is dense
    residual,  # [tokens, size] dense, with ADD
    weight,  # [size]
    out,  # [tokens, heads, size] dense
    total,  # [tokens, size] dense, with ADD: x + residual
    rows,
    heads,
    token_stride,
    head_stride,
    eps,
    SIZE: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    there = (row < rows) & (column < SIZE)
    dense = row.to(tl.int64) * SIZE + column
    place = (row // heads).to(tl.int64) * token_stride + (row % heads) * head_stride + column
    value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + dense, mask=there, other=0.0).to(tl.float32)
        value = value.to(total.dtype.element_ty).to(tl.float32)  # what is normed is what the residual stream holds
        tl.store(total + dense, value, mask=there)
    scale = tl.load(weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
    mean = tl.sum(value * value, axis=1) / SIZE
    normed = value * tl.rsqrt(mean + eps)[:, None] * scale
    tl.store(out + dense, normed, mask=there)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., size] -> the same, normed over the last axis; slices of a fused projection are read in place."""
    size = x.shape[-1]
    if x.dim() not in (2, 3) or x.stride(-1) != 1:
        x = x.contiguous()
    heads = x.shape[1] if x.dim() == 3 else 1
    strides = (x.stride(0), x.stride(1)) if x.dim() == 3 else (x.stride(0) if x.dim() == 2 else size, 0)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, x, weight, out, out, x.numel() // size, heads, strides, eps, add=False)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and residual [T, size] -> their sum, and the sum normed."""
    x, residual = x.contiguous(), residual.contiguous()
    total, out = torch.empty_like(residual), torch.empty_like(residual)
    _launch(x, residual, weight, out, total, len(x), 1, (x.shape[1], 0), eps, add=True)
    return total, out


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor,
    rows: int,
    heads: int,
    strides: tuple[int, int],
    eps: float,
    *,
    add: bool,
) -> None:
    size = weight.shape[0]
    block = triton.next_power_of_2(size)
    tile = launch("rms_norm", x.device)
    together = max(1, tile["elements"] // block)
    _rms_norm[(triton.cdiv(rows, together),)](
        x, residual, weight, out, total, rows, heads, *strides, eps,
        SIZE=size, ADD=add, ROWS=together, BLOCK=block, num_warps=tile.warps,
    )  # fmt: skip


class RmsNorm(Kernel):
    """``lsv_runtime.nn.norm.RMSNorm``; x [T, size], [T, heads, size] as a slice of a fused projection, or anything
    else.
    """

    def __init__(self, module: RMSNorm, spec: OpSpec) -> None:
        self._module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self._module.weight, self._module.eps)
