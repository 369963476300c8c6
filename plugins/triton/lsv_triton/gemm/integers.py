"""Products of rows of int8 numbers with weights of int8: exact, in int32, of all inputs or of each group of them."""

from __future__ import annotations

import triton
import triton.language as tl

from lsv_triton.gemm.tiles import finish, name_rows, place_rows


@triton.jit
def _sum_products(
    rows_at, weights_at, first, last, K,
    SPAN: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """int32 [outputs, rows]: the products of the inputs of some steps, from ``first`` to the one before ``last``."""
    span = tl.arange(0, SPAN)
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.int32)
    for step in range(first, last):
        if EVEN:
            codes = tl.load(weights_at + step * SPAN)
        else:
            codes = tl.load(weights_at + step * SPAN, mask=(step * SPAN + span < K)[None, :], other=0)
        sums = tl.dot(codes, tl.load(rows_at + step * SPAN), sums, out_dtype=tl.int32)
    return sums


@triton.jit(do_not_specialize=("M", "x_rows"))
def multiply_integers(
    x, row_scales, weight, scales, bias, out, tiles, pairs,
    M, N, K, x_rows, x_stride, top,
    GROUP: tl.constexpr, SPAN: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out [M, N] from x int8 [x_rows, inputs] with row_scales [groups, x_rows], and weights int8 [experts, N, K] with
    scales [experts, 1, N]. Inputs behind the last are zero in x. ``GROUP`` of them share a scale, 0 for all.
    """
    tl.static_assert(GROUP % SPAN == 0)
    expert, first, end = place_rows(tiles, M, BLOCK_M)
    if first >= end:
        return
    reads, writes, there = name_rows(pairs, first, end, top, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if tiles is not None:
        expert = expert.to(tl.int64)
        weight += expert * N * K
        scales += expert * N
        if bias is not None:
            bias += expert * N
    own = tl.where(n < N, n, 0).to(tl.int64)
    span = tl.arange(0, SPAN)
    rows_at = x + reads[None, :] * x_stride + span[:, None]
    weights_at = weight + own[:, None] * K + span[None, :]
    steps = tl.cdiv(K, SPAN)
    if GROUP == 0:
        sums = _sum_products(rows_at, weights_at, 0, steps, K, SPAN, EVEN, BLOCK_M, BLOCK_N)
        total = sums.to(tl.float32) * tl.load(row_scales + reads)[None, :]
    else:
        total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for first in range(0, steps, GROUP // SPAN):
            last = tl.minimum(first + GROUP // SPAN, steps)
            sums = _sum_products(rows_at, weights_at, first, last, K, SPAN, EVEN, BLOCK_M, BLOCK_N)
            total += sums.to(tl.float32) * tl.load(row_scales + reads)[None, :]
            row_scales += x_rows
    finish(total, out, scales, None, bias, reads, writes, there, n, N)
