"""Products of rows of floats with weights: plain ones, or codes that are decoded in the tile.

Inputs are added up in parts of a fixed length, and the parts in order: by one program where there are many rows, or by
as many programs as there are parts and a second kernel. Either way a row's result has the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lsv_triton.gemm.tiles import decode, finish, name_rows, place_rows, place_weights, read_whole


@triton.jit
def _weights(
    packed, quarter, k, block, n, scales, offsets, table, N, K, groups,
    VALUES: tl.constexpr, GROUP: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr,
    CODES: tl.constexpr, SPAN: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Weights [outputs, SPAN] of the inputs ``k``, the span number ``block``; 0 behind the last one. Without ``scales``
    they are what their codes mean.
    """
    if VALUES == "plain":
        w = packed
    else:
        codes = packed
        if CODES > 1:
            codes = packed >> 4 * quarter & 15
        w = decode(codes, table, VALUES, FIRST, STEP)
        if GROUP > 0 and scales is not None:
            if GROUP % SPAN == 0:
                at = (tl.minimum(block * SPAN // GROUP, groups - 1) * N + n)[:, None]
            else:
                at = tl.minimum(k // GROUP, groups - 1)[None, :] * N + n[:, None]
            w = w * tl.load(scales + at)
            if offsets is not None:
                w = w + tl.load(offsets + at)
        if not EVEN:
            w = tl.where((k < K)[None, :], w, 0.0)
    return w


@triton.jit
def _read_rows(at, order, k, K, EVEN: tl.constexpr, X_VALUES: tl.constexpr):
    """The inputs ``k`` of rows, [SPAN, rows], in the order in which weights have them; 0 behind the last one."""
    if order is not None:
        k = tl.load(order + k, mask=k < K, other=K)
    if EVEN:
        rows = tl.load(at + k[:, None])
    else:
        rows = tl.load(at + k[:, None], mask=(k < K)[:, None], other=0.0)
    if X_VALUES == "e4m3":
        rows = decode(rows, None, X_VALUES, 0.0, 1.0)
    return rows


@triton.jit
def _read_first(offsets, at, FIRST: tl.constexpr):
    """What code 0 is as a whole number, float32 [outputs]: the same everywhere, or of the offsets int8 at ``at``."""
    if offsets is not None:
        first = tl.load(offsets + at).to(tl.float32)
    else:
        first = tl.zeros_like(at).to(tl.float32) + FIRST
    return first


@triton.jit
def _add_scaled(sums, found, scales, row_scales, places):
    """``sums`` and a product times its scales, pointers [outputs]; row_scales or None have ``places``."""
    found *= tl.load(scales)[:, None]
    if row_scales is not None:
        found *= tl.load(row_scales + places)[None, :]
    return sums + found


@triton.jit(do_not_specialize=("M", "x_rows"))
def multiply(
    x, weight, scales, offsets, table, order, bias, row_scales, out, tiles, pairs,
    M, N, K, columns, stored, groups, x_rows, x_stride, top,
    VALUES: tl.constexpr, X_VALUES: tl.constexpr, GROUP: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr,
    CODES: tl.constexpr, SPAN: tl.constexpr, EVEN: tl.constexpr, PART: tl.constexpr, SPLIT: tl.constexpr,
    WHOLE: tl.constexpr, LATE: tl.constexpr, TILE: tl.constexpr, ROUND: tl.constexpr, DOT: tl.constexpr,
    PTX: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out [M, N] = x [M, K] @ weights [experts, N, K].T, by tiles of BLOCK_N outputs and BLOCK_M rows.

    Weights lie in tiles of TILE outputs, ``stored`` of them and ``columns`` elements each: see ``place_weights``. They
    are rounded to ``ROUND``, and multiplied in ``DOT``. With ``SPLIT`` a program adds up one part and out is float32
    [parts, M, N]; see ``add_parts``. Rows of codes have ``row_scales`` [groups, x_rows]. Where codes are multiplied, as
    with ``WHOLE`` and by rows of codes, scales are ``LATE``: they wait for the sum of what a step has of their group.
    """
    expert, first, end = place_rows(tiles, M, BLOCK_M)
    if first >= end:
        return
    reads, writes, there = name_rows(pairs, first, end, top, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if tiles is not None:
        expert = expert.to(tl.int64)
        weight += expert * stored * columns
        if scales is not None:
            scales += expert * N * groups
        if offsets is not None:
            offsets += expert * N * groups
        if order is not None:
            order += expert * K
        if bias is not None:
            bias += expert * N
    # spans of one step that share a scale
    JOINED: tl.constexpr = 1 if not LATE or CODES == 1 or GROUP % (2 * SPAN) else 2 if GROUP % (CODES * SPAN) else CODES
    own = tl.where(n < N, n, 0)
    span = tl.arange(0, SPAN)
    rows_at = x + reads[None, :] * x_stride
    weights_at = weight + place_weights(n, N, columns, SPAN, TILE)
    start, stop = 0, tl.cdiv(K, SPAN * CODES)
    if SPLIT:
        start = tl.program_id(2) * PART
        stop = tl.minimum(start + PART, stop)
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for part in range(start, stop, PART):
        sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for step in range(part, tl.minimum(part + PART, stop)):
            if EVEN or CODES > 1:
                packed = tl.load(weights_at + step * (SPAN * TILE))
            else:
                packed = tl.load(weights_at + step * (SPAN * TILE), mask=(step * SPAN + span < K)[None, :], other=0.0)
            for quarter in tl.static_range(CODES):
                block = step * CODES + quarter
                k, group = block * SPAN + span, 0
                if LATE:
                    group = tl.minimum(block * SPAN // GROUP, groups - 1)
                if LATE and quarter % JOINED == 0:
                    found = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
                if WHOLE:
                    if quarter % JOINED == 0:
                        first_code = _read_first(offsets, group * N + own, FIRST)
                    w = read_whole(packed, quarter, first_code[:, None], DOT, PTX)
                else:
                    w = _weights(
                        packed, quarter, k, block, own, None if LATE else scales, offsets, table, N, K, groups,
                        VALUES, GROUP, FIRST, STEP, CODES, SPAN, EVEN,
                    ).to(ROUND).to(DOT)  # fmt: skip
                rows = _read_rows(rows_at, order, k, K, EVEN, X_VALUES)
                if LATE:
                    found = tl.dot(w, rows.to(DOT), found, input_precision="ieee", max_num_imprecise_acc=SPAN)
                    if quarter % JOINED == JOINED - 1:
                        sums = _add_scaled(sums, found, scales + group * N + own, row_scales, group * x_rows + reads)
                else:
                    sums = tl.dot(w, rows.to(DOT), sums, input_precision="ieee", max_num_imprecise_acc=SPAN)
        total += sums
    if SPLIT:
        out += tl.program_id(2).to(tl.int64) * M * N
        finish(total, out, None, None, None, reads, writes, there, n, N)
    elif GROUP == 0:
        finish(total, out, scales, row_scales, bias, reads, writes, there, n, N)
    else:
        finish(total, out, None, None, bias, reads, writes, there, n, N)


@triton.jit(do_not_specialize=("M",))
def add_parts(parts, scales, row_scales, bias, out, M, N, PARTS: tl.constexpr, BLOCK_N: tl.constexpr):
    """out [M, N] from float32 [parts, M, N], in order."""
    row = tl.program_id(0) + tl.arange(0, 1).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_N, 1), tl.float32)
    for part in range(PARTS):
        at = (part * M + row)[None, :] * N + n[:, None]
        total += tl.load(parts + at, mask=(n < N)[:, None], other=0.0)
    finish(total, out, scales, row_scales, bias, row, row, row < M, n, N)
