"""Paged attention: tiles of queries over tiles of keys, segment by segment.

Keys are cut at fixed positions into segments of ``SEGMENT``. Within one a tile of queries passes over tiles of keys
with a running maximum; what segments give is merged in their order, starting from nothing. So a token's result is made
of the same operations whichever rows share its tile, whether it is decoded or part of a prompt, and whether one program
passes over all segments or each has a program of its own.

A part of a result is ``(peak, total, sum)``: the largest score, the weights relative to it added up, and the values so
weighted. Scores are in base 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lsv_triton.attention.code_kernels import INT8, real

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _row_of(index, starts, rows, SIZE: tl.constexpr, GAP: tl.constexpr):
    """The last row r with ``starts[r] // SIZE + r * GAP <= index``."""
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(starts + middle) // SIZE + middle * GAP <= index
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit
def _tile_of(tile, starts, rows, QUERIES: tl.constexpr, DECODING: tl.constexpr):
    """The row of a tile, and which of its tokens is the tile's first."""
    if DECODING:
        row, first = tile, 0
    else:
        row = _row_of(tile, starts, rows, QUERIES, 1)
        first = (tile - tl.load(starts + row) // QUERIES - row) * QUERIES
    return row, first


@triton.jit
def _seen(lowest, highest, length, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """The keys [begin, end) that queries at positions lowest … highest of ``length`` see."""
    begin, end = 0, length
    if WINDOW > 0:
        begin, end = tl.maximum(0, lowest - WINDOW + 1), tl.minimum(length, highest + WINDOW)
    if CAUSAL:
        end = highest + 1
    return begin, end


@triton.jit
def _nothing(ROWS: tl.constexpr, SPAN: tl.constexpr):
    """The part of no keys."""
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    return peak, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, SPAN], tl.float32)


@triton.jit
def _slopes(alibi, head, there, ALIBI: tl.constexpr, ROWS: tl.constexpr):
    """What a step of distance adds to a score, by row."""
    slope = tl.zeros([ROWS], tl.float32)
    if ALIBI:
        slope = tl.load(alibi + head, mask=there, other=0.0).to(tl.float32) * -_LOG2E
    return slope


@triton.jit
def _merge(peak, total, acc, next_peak, next_total, next_acc):
    """Two parts as one."""
    top = tl.maximum(peak, next_peak)
    base = tl.where(top == float("-inf"), 0.0, top)
    old, new = tl.exp2(peak - base), tl.exp2(next_peak - base)
    total = tl.fma(total, old, next_total * new)
    acc = tl.fma(acc, old[:, None] + tl.zeros_like(acc), next_acc * new[:, None])
    return top, total, acc


@triton.jit
def _finish(peak, total, acc, sinks, head, there, value_scale, SINKS: tl.constexpr):
    """The result of a whole part: weights add up to one, with the sink's if there is any."""
    if SINKS:
        sink = tl.load(sinks + head, mask=there, other=0.0).to(tl.float32) * _LOG2E
        peak, total, acc = _merge(peak, total, acc, sink, tl.zeros_like(total) + 1.0, tl.zeros_like(acc))
    return acc / total[:, None] * value_scale


@triton.jit
def _pass_segment(
    q, position, slope,
    keys, values, key_scales, value_scales, table, origin,
    low, high, begin, end,
    scale, cap,
    page_stride, key_stride, value_stride, scale_page_stride,
    DIM: tl.constexpr, BLOCK: tl.constexpr, PAGED: tl.constexpr, FORM: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SPAN: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """The part of keys [low, high) for queries [ROWS, SPAN]; of these, ones outside [begin, end) are nobody's."""
    peak, total, acc = _nothing(ROWS, SPAN)
    feature = tl.arange(0, SPAN)
    for first in range(low, high, KEYS):
        at = first + tl.arange(0, KEYS)
        inside = (at >= begin) & (at < end)
        if PAGED:
            page = tl.load(table + at // BLOCK, mask=inside, other=0).to(tl.int64)
            key_at = page * page_stride + (at % BLOCK) * DIM
            value_at = key_at
            scale_at = page * scale_page_stride + at % BLOCK
        else:
            key_at = (origin + at) * key_stride
            value_at = (origin + at) * value_stride
            scale_at = key_at
        there = inside[:, None] & (feature < DIM)[None, :]
        k = real(tl.load(keys + key_at[:, None] + feature[None, :], mask=there, other=0), FORM).to(DOT)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if FORM == INT8:
            score *= tl.load(key_scales + scale_at, mask=inside, other=0.0)[None, :]
        if CAP:
            score = (1.0 - 2.0 / (tl.exp2(score * 2.0 * _LOG2E) + 1.0)) * cap  # cap * tanh(score)
        distance = position[:, None] - at[None, :]
        if ALIBI:
            score = tl.fma(tl.abs(distance).to(tl.float32), slope[:, None] + tl.zeros_like(score), score)
        visible = inside[None, :]
        if CAUSAL:
            visible = visible & (distance >= 0)
        if WINDOW > 0:
            visible = visible & (tl.abs(distance) < WINDOW)
        score = tl.where(visible, score, float("-inf"))
        top = tl.maximum(peak, tl.max(score, axis=1))
        base = tl.where(top == float("-inf"), 0.0, top)
        weight, old = tl.exp2(score - base[:, None]), tl.exp2(peak - base)
        total = tl.fma(total, old, tl.sum(weight, axis=1))
        v = real(tl.load(values + value_at[:, None] + feature[None, :], mask=there, other=0), FORM).to(DOT)
        if FORM == INT8:
            weight *= tl.load(value_scales + scale_at, mask=inside, other=0.0)[None, :]
        acc = tl.dot(weight.to(DOT), v, acc * old[:, None], input_precision="ieee")
        peak = top
    return peak, total, acc


@triton.jit(do_not_specialize=["rows", "segments"])
def attend_tiles(
    q,  # [tokens, heads, DIM]; the last axis is dense
    out,  # the same, dense; without SPLIT
    peaks,  # float32 [tokens, heads, segments], with SPLIT
    totals,
    sums,  # float32 [tokens, heads, segments, DIM]
    keys,  # PAGED: [pages, kv_heads, BLOCK, DIM], all but pages dense; else [tokens, kv_heads, DIM]
    values,
    key_scales,  # float32 [pages, kv_heads, BLOCK], with INT8
    value_scales,
    sinks,  # [heads]
    alibi,
    starts,  # int32 [rows + 1]
    context,  # int32 [rows]
    tables,  # int32 [rows, blocks]
    rows, segments, table_stride,
    q_stride, q_head_stride,
    page_stride, key_stride, key_head_stride, value_stride, value_head_stride, scale_page_stride,
    scale, cap, value_scale,
    RATIO: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, PAGED: tl.constexpr, FORM: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr, SINKS: tl.constexpr,
    DECODING: tl.constexpr, SPLIT: tl.constexpr,
    SEGMENT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SPAN: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Program (tile, KV head, segment with SPLIT). Tile i of a step is one of row r if ``starts[r] // QUERIES + r`` is
    at most i, which leaves some without tokens; where all rows have one token, it is that of row i.
    """
    QUERIES: tl.constexpr = ROWS // RATIO
    row, first = _tile_of(tl.program_id(0), starts, rows, QUERIES, DECODING)
    start = tl.load(starts + row)
    query = tl.load(starts + row + 1) - start
    if first >= query:
        return
    length = tl.load(context + row) if PAGED else query
    lowest = length - query + first
    begin, end = _seen(lowest, tl.minimum(lowest + QUERIES, length) - 1, length, CAUSAL, WINDOW)
    kv_head, lane = tl.program_id(1), tl.arange(0, ROWS)
    token, head = first + lane // RATIO, kv_head * RATIO + lane % RATIO
    there = (token < query) & (lane < QUERIES * RATIO)
    position = length - query + token
    feature = tl.arange(0, SPAN)[None, :]
    whole = there[:, None] & (feature < DIM)
    place = (start + token).to(tl.int64)
    x = tl.load(q + place[:, None] * q_stride + head[:, None] * q_head_stride + feature, mask=whole, other=0.0).to(DOT)
    slope = _slopes(alibi, head, there, ALIBI, ROWS)
    heads, origin = tl.num_programs(1) * RATIO, start.to(tl.int64)
    table = tables + row.to(tl.int64) * table_stride
    own_keys = keys + kv_head.to(tl.int64) * key_head_stride
    own_values = values + kv_head.to(tl.int64) * value_head_stride
    own_key_scales, own_value_scales = key_scales + kv_head * BLOCK, value_scales + kv_head * BLOCK
    from_segment, to_segment = begin // SEGMENT, tl.cdiv(end, SEGMENT)
    if SPLIT:
        from_segment = tl.program_id(2)
        to_segment = from_segment + 1
        if (to_segment * SEGMENT <= begin) | (from_segment * SEGMENT >= end):
            return
    peak, total, acc = _nothing(ROWS, SPAN)
    for segment in range(from_segment, to_segment):
        low = tl.maximum(segment * SEGMENT, begin // KEYS * KEYS)
        high = tl.minimum((segment + 1) * SEGMENT, end)
        next_peak, next_total, next_acc = _pass_segment(
            x, position, slope,
            own_keys, own_values, own_key_scales, own_value_scales, table, origin,
            low, high, begin, end, scale, cap,
            page_stride, key_stride, value_stride, scale_page_stride,
            DIM, BLOCK, PAGED, FORM, CAUSAL, WINDOW, CAP, ALIBI, ROWS, KEYS, SPAN, DOT,
        )  # fmt: skip
        if SPLIT:
            peak, total, acc = next_peak, next_total, next_acc
        else:
            peak, total, acc = _merge(peak, total, acc, next_peak, next_total, next_acc)
    if SPLIT:
        part = (place * heads + head) * segments + from_segment
        tl.store(peaks + part, peak, mask=there)
        tl.store(totals + part, total, mask=there)
        tl.store(sums + part[:, None] * DIM + feature, acc, mask=whole)
    else:
        answer = _finish(peak, total, acc, sinks, head, there, value_scale, SINKS)
        tl.store(out + (place * heads + head)[:, None] * DIM + feature, answer.to(out.dtype.element_ty), mask=whole)


@triton.jit(do_not_specialize=["rows", "segments"])
def merge_segments(
    out,  # [tokens, heads, DIM] dense
    peaks,  # float32 [tokens, heads, segments]
    totals,
    sums,  # float32 [tokens, heads, segments, DIM]
    sinks,  # [heads]
    starts,  # int32 [rows + 1]
    context,  # int32 [rows]
    rows, segments, value_scale,
    RATIO: tl.constexpr, DIM: tl.constexpr, PAGED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, DECODING: tl.constexpr, SEGMENT: tl.constexpr, LANES: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Program (token, KV head): what ``attend_tiles`` left of the segments that the token sees."""
    token, kv_head = tl.program_id(0), tl.program_id(1)
    row = token if DECODING else _row_of(token, starts, rows, 1, 0)
    start, stop = tl.load(starts + row), tl.load(starts + row + 1)
    length = tl.load(context + row) if PAGED else stop - start
    position = length - stop + token
    begin, end = _seen(position, position, length, CAUSAL, WINDOW)

    lane, feature = tl.arange(0, LANES), tl.arange(0, SPAN)[None, :]
    head, there = kv_head * RATIO + lane, lane < RATIO
    whole = there[:, None] & (feature < DIM)
    line = token.to(tl.int64) * (tl.num_programs(1) * RATIO) + head
    peak, total, acc = _nothing(LANES, SPAN)
    for segment in range(begin // SEGMENT, tl.cdiv(end, SEGMENT)):
        part = line * segments + segment
        next_peak = tl.load(peaks + part, mask=there, other=0.0)
        next_total = tl.load(totals + part, mask=there, other=0.0)
        next_acc = tl.load(sums + part[:, None] * DIM + feature, mask=whole, other=0.0)
        peak, total, acc = _merge(peak, total, acc, next_peak, next_total, next_acc)
    answer = _finish(peak, total, acc, sinks, head, there, value_scale, SINKS)
    tl.store(out + line[:, None] * DIM + feature, answer.to(out.dtype.element_ty), mask=whole)
