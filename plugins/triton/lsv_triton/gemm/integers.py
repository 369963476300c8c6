"""Products of rows of int8 numbers with weights of int8: exact, in int32."""

from __future__ import annotations

import triton
import triton.language as tl

from lsv_triton.gemm.tiles import finish, name_rows, place_rows


@triton.jit(do_not_specialize=("M", "x_rows"))
def multiply_integers(
    x, row_scales, weight, scales, bias, out, tiles, pairs,
    M, N, K, x_rows, x_stride, top,
    SPAN: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out [M, N] from x int8 [x_rows, inputs] with row_scales [1, x_rows], and weights int8 [experts, N, K] with scales
    [experts, 1, N]. Inputs behind the last are zero in x.
    """
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
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.int32)
    for step in range(tl.cdiv(K, SPAN)):
        if EVEN:
            codes = tl.load(weights_at + step * SPAN)
        else:
            codes = tl.load(weights_at + step * SPAN, mask=(step * SPAN + span < K)[None, :], other=0)
        sums = tl.dot(codes, tl.load(rows_at + step * SPAN), sums, out_dtype=tl.int32)
    total = sums.to(tl.float32) * tl.load(row_scales + reads)[None, :]
    finish(total, out, scales, None, bias, reads, writes, there, n, N)
