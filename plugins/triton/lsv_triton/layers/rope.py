"""Rotating heads in place of their projection, with the norm of heads that some models put before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lsv.offers import OpSpec
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.ops import Kernel
from lsv_triton.device_table import launch


@triton.jit(do_not_specialize=["rows"])
def _turn_heads(
    x,  # [tokens, heads, DIM]; the last axis is dense
    q_weight,  # [DIM], with NORM
    k_weight,
    positions,  # int64 [tokens]
    table,  # [max_len, 2 * ROTARY]: see lsv_runtime.nn.rope.Rope
    out,  # [tokens, heads, DIM] dense
    rows,
    heads,
    queries,
    token_stride,
    head_stride,
    q_eps,
    k_eps,
    DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    NORM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    there = (row < rows) & (column < DIM)
    token, head = row // heads, row % heads
    start = x + token.to(tl.int64) * token_stride + head * head_stride
    position = tl.load(positions + token, mask=row < rows, other=0)
    turned = turn(
        start, column, there, head < queries, q_weight, k_weight, q_eps, k_eps, table, position, DIM, ROTARY, NORM
    )
    tl.store(out + row.to(tl.int64) * DIM + column, turned, mask=there)


@triton.jit
def turn(
    start,  # pointers to heads [rows, 1]
    column,  # [1, columns]
    there,  # [rows, columns]
    is_query,  # [rows, 1], with NORM
    q_weight,  # [DIM], with NORM
    k_weight,
    q_eps,
    k_eps,
    table,  # [max_len, 2 * ROTARY]
    position,  # int64 [rows, 1]
    DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    NORM: tl.constexpr,
):
    """The heads turned, float32 [rows, columns]; with ``NORM`` each is normed first."""
    HALF: tl.constexpr = ROTARY // 2
    turns = column < ROTARY
    partner = tl.where(column < HALF, column + HALF, tl.where(turns, column - HALF, column))
    value = tl.load(start + column, mask=there, other=0.0).to(tl.float32)
    other = tl.load(start + partner, mask=there, other=0.0).to(tl.float32)
    if NORM:
        factor = tl.rsqrt(tl.sum(value * value, axis=1)[:, None] / DIM + tl.where(is_query, q_eps, k_eps))
        value *= factor * _either(q_weight, k_weight, is_query, column, there)
        other *= factor * _either(q_weight, k_weight, is_query, partner, there)
        value = value.to(start.dtype.element_ty).to(tl.float32)  # as where the norm is an op of its own
        other = other.to(start.dtype.element_ty).to(tl.float32)
    entry = position * (2 * ROTARY) + column
    cos = tl.load(table + entry, mask=there & turns, other=1.0).to(tl.float32)
    sin = tl.load(table + entry + ROTARY, mask=there & turns, other=0.0).to(tl.float32)
    return value * cos + other * sin


@triton.jit
def _either(q_weight, k_weight, is_query, column, there):
    return tl.load(tl.where(is_query, q_weight, k_weight) + column, mask=there, other=0.0).to(tl.float32)


def turn_heads(
    heads: torch.Tensor, positions: torch.Tensor, rope: Rope, norms: tuple[RMSNorm, RMSNorm, int] | None = None
) -> torch.Tensor:
    """heads [T, any, head_dim], perhaps a slice, and positions int64 [T] -> the rotated heads, dense.

    ``norms`` are those of q and of k, and how many heads are q's: every head is normed before it turns.
    """
    if heads.stride(-1) != 1:
        heads = heads.contiguous()
    tokens, count, dim = heads.shape
    q_norm, k_norm, queries = norms or (None, None, 0)
    q_weight = rope.table if q_norm is None else q_norm.weight
    k_weight = rope.table if k_norm is None else k_norm.weight
    out = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
    block, tile = triton.next_power_of_2(dim), launch("rope", heads.device)
    together = max(1, tile["elements"] // block)
    _turn_heads[(triton.cdiv(tokens * count, together),)](
        heads, q_weight, k_weight, positions.contiguous(), rope.table, out,
        tokens * count, count, queries, heads.stride(0), heads.stride(1),
        0.0 if q_norm is None else q_norm.eps, 0.0 if k_norm is None else k_norm.eps,
        DIM=dim, ROTARY=rope.rope.rotary_dim, NORM=norms is not None, ROWS=together, BLOCK=block,
        num_warps=tile.warps,
    )  # fmt: skip
    return out


class Rotate(Kernel):
    """``lsv_runtime.nn.rope.Rope``: heads [T, any, head_dim] and positions int64 [T] -> the rotated heads, same
    shape.
    """

    def __init__(self, module: Rope, spec: OpSpec) -> None:
        self._module = module

    def forward(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return turn_heads(heads, positions, self._module)
