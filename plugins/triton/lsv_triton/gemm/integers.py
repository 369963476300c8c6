"""Products of rows of int8 numbers with weights of 8 or 4 bits: exact in int32 within a group of inputs."""

from __future__ import annotations

import triton
import triton.language as tl

from lsv_triton.gemm.tiles import finish, name_rows, place_rows, place_weights


@triton.jit(do_not_specialize=("M", "x_rows"))
def multiply_integers(
    x, row_scales, weight, scales, bias, out, tiles, pairs,
    M, N, columns, stored, groups, x_rows, x_stride, top,
    HALVES: tl.constexpr, SPAN: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out [M, N] from x int8 [x_rows, inputs] and weights [experts, N, columns].

    Weights are int8 with one scale for each output, [experts, 1, N], and row_scales [1, x_rows]; or, with two halves in
    a byte, 4 bits of code + 8 with scales [experts, groups, N] and row_scales [groups, x_rows], SPAN inputs to a group.
    Inputs behind the last are zero in x.
    """
    expert, first, end = place_rows(tiles, M, BLOCK_M)
    if first >= end:
        return
    reads, writes, there = name_rows(pairs, first, end, top, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if tiles is not None:
        expert = expert.to(tl.int64)
        weight += expert * stored * columns
        scales += expert * N * groups
        if bias is not None:
            bias += expert * N
    own = tl.where(n < N, n, 0)
    span = tl.arange(0, SPAN)
    rows_at = x + reads[None, :] * x_stride + span[:, None]
    weights_at = weight + place_weights(n, N, columns, SPAN, TILE)
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.int32)
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in range(tl.cdiv(columns, SPAN)):
        if EVEN or HALVES == 2:
            packed = tl.load(weights_at + step * (SPAN * TILE))
        else:
            packed = tl.load(weights_at + step * (SPAN * TILE), mask=(step * SPAN + span < columns)[None, :], other=0)
        if HALVES == 1:
            sums = tl.dot(packed, tl.load(rows_at + step * SPAN), sums, out_dtype=tl.int32)
        else:
            for half in tl.static_range(2):
                group = 2 * step + half
                w = (packed >> 4 * half & 15).to(tl.int8) - 8
                rows = tl.load(rows_at + group * SPAN)
                exact = tl.dot(w, rows, tl.zeros((BLOCK_N, BLOCK_M), tl.int32), out_dtype=tl.int32).to(tl.float32)
                known = tl.minimum(group, groups - 1)
                exact = exact * tl.load(row_scales + known * x_rows + reads)[None, :]
                total += exact * tl.load(scales + known * N + own)[:, None]
    if HALVES == 1:
        total = sums.to(tl.float32) * tl.load(row_scales + reads)[None, :]
        finish(total, out, scales, None, bias, reads, writes, there, n, N)
    else:
        finish(total, out, None, None, bias, reads, writes, there, n, N)
