"""Paged attention: tiles of queries over tiles of keys, segment by segment.

Keys are cut into segments at fixed positions, see ``schedule``. Within one a tile of queries passes over tiles of keys
with a running maximum; what segments give is merged in their order, starting from nothing. So a token's result is made
of the same operations whichever rows share its tile, whether it is decoded or part of a prompt, and whether one program
passes over all segments or several over some each.

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
def _tile_of(tile, unit, starts, rows, QUERIES: tl.constexpr, DECODING: tl.constexpr, PLANNED: tl.constexpr):
    """The row of a tile, and which of its tokens is the tile's first."""
    if PLANNED:
        row, first = tl.load(unit), tl.load(unit + 1)
    elif DECODING:
        row, first = tile, 0
    else:
        row = _row_of(tile, starts, rows, QUERIES, 1)
        first = (tile - tl.load(starts + row) // QUERIES - row) * QUERIES
    return row, first


@triton.jit
def _border(segment, SEGMENT: tl.constexpr, DOUBLING: tl.constexpr):
    """The first position of a segment."""
    level = tl.maximum(segment // DOUBLING - 1, 0)
    return ((segment - level * DOUBLING) << level) * SEGMENT


@triton.jit
def _segment_at(position, SEGMENT: tl.constexpr, DOUBLING: tl.constexpr):
    """Which segment a position lies in."""
    units, level = position // SEGMENT, 0
    while (units >> level) >= 2 * DOUBLING:
        level += 1
    return level * DOUBLING + (units >> level)


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
def _seen_by_all(lowest, highest, length, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, KEYS: tl.constexpr):
    """The keys [begin, end), in whole tiles, that each of the queries at positions lowest … highest sees."""
    begin, end = 0, length
    if WINDOW > 0:
        begin, end = tl.maximum(0, highest - WINDOW + 1), tl.minimum(length, lowest + WINDOW)
    if CAUSAL:
        end = lowest + 1
    return tl.cdiv(begin, KEYS) * KEYS, end // KEYS * KEYS


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
def _chosen(position, at, phase, SIZE: tl.constexpr, LOCAL: tl.constexpr, STRIDE: tl.constexpr):
    """Which keys ``at`` [KEYS] are in blocks that queries [ROWS] see: the last ones, and every ``STRIDE``-th."""
    block = at // SIZE
    near = (position // SIZE)[:, None] - block[None, :] < LOCAL
    return near | ((block[None, :] + phase[:, None]) % STRIDE == 0)


@triton.jit
def _load(places, there, MASKED: tl.constexpr):
    """What is there, 0 for the rest; without ``MASKED`` all of it is."""
    if MASKED:
        found = tl.load(places, mask=there, other=0)
    else:
        found = tl.load(places)
    return found


@triton.jit
def _pass_keys(
    peak, total, acc,
    q, position, slope, biases, distances, phase,
    keys, values, key_scales, value_scales, table, origin,
    low, high, begin, end,
    scale, cap,
    page_stride, key_stride, value_stride, scale_page_stride,
    MASKED: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, PAGED: tl.constexpr, FORM: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr, BIASED: tl.constexpr,
    SIZE: tl.constexpr, LOCAL: tl.constexpr, STRIDE: tl.constexpr,
    KEYS: tl.constexpr, SPAN: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """A part with keys [low, high) added for queries [ROWS, SPAN]; without ``MASKED`` every query sees all of them."""
    feature = tl.arange(0, SPAN)
    for first in range(low, high, KEYS):
        at = first + tl.arange(0, KEYS)
        inside = (at >= begin) & (at < end) if MASKED else at >= 0
        if SIZE > 0:  # keys that no query of the tile sees are not even loaded
            chosen = _chosen(position, at, phase, SIZE, LOCAL, STRIDE)
            inside = inside & (tl.max(chosen.to(tl.int32), axis=0) > 0)
        if PAGED:
            page = _load(table + at // BLOCK, inside, MASKED).to(tl.int64)
            key_at = page * page_stride + (at % BLOCK) * DIM
            value_at = key_at
            scale_at = page * scale_page_stride + at % BLOCK
        else:
            key_at = (origin + at) * key_stride
            value_at = (origin + at) * value_stride
            scale_at = key_at
        there = inside[:, None] & (feature < DIM)[None, :]
        k = real(_load(keys + key_at[:, None] + feature[None, :], there, MASKED or DIM < SPAN), FORM).to(DOT)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if FORM == INT8:
            score *= _load(key_scales + scale_at, inside, MASKED)[None, :]
        if CAP:
            score = (1.0 - 2.0 / (tl.exp2(score * 2.0 * _LOG2E) + 1.0)) * cap  # cap * tanh(score)
        if ALIBI or BIASED or MASKED:
            distance = position[:, None] - at[None, :]
        if ALIBI:
            score = tl.fma(tl.abs(distance).to(tl.float32), slope[:, None] + tl.zeros_like(score), score)
        if BIASED:  # keys behind a query are not seen: any bias will do
            bias = tl.load(biases[:, None] + tl.minimum(tl.maximum(distance, 0), distances - 1)).to(tl.float32)
            score = tl.fma(bias, tl.full(score.shape, _LOG2E, tl.float32), score)
        if MASKED:
            visible = inside[None, :]
            if CAUSAL:
                visible = visible & (distance >= 0)
            if WINDOW > 0:
                visible = visible & (tl.abs(distance) < WINDOW)
            if SIZE > 0:
                visible = visible & chosen
            score = tl.where(visible, score, float("-inf"))
        top = tl.maximum(peak, tl.max(score, axis=1))
        base = tl.where(top == float("-inf"), 0.0, top)
        weight, old = tl.exp2(score - base[:, None]), tl.exp2(peak - base)
        total = tl.fma(total, old, tl.sum(weight, axis=1))
        v = real(_load(values + value_at[:, None] + feature[None, :], there, MASKED or DIM < SPAN), FORM).to(DOT)
        if FORM == INT8:
            weight *= _load(value_scales + scale_at, inside, MASKED)[None, :]
        acc = tl.dot(weight.to(DOT), v, acc * old[:, None], input_precision="ieee")
        peak = top
    return peak, total, acc


@triton.jit
def _pass_segment(
    q, position, slope, biases, distances, phase,
    keys, values, key_scales, value_scales, table, origin,
    low, high, begin, end, whole_from, whole_to,
    scale, cap,
    page_stride, key_stride, value_stride, scale_page_stride,
    DIM: tl.constexpr, BLOCK: tl.constexpr, PAGED: tl.constexpr, FORM: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr, BIASED: tl.constexpr,
    SIZE: tl.constexpr, LOCAL: tl.constexpr, STRIDE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SPAN: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """The part of keys [low, high) for queries [ROWS, SPAN]; of these, ones outside [begin, end) are nobody's, and
    those of [whole_from, whole_to), whole tiles, are everybody's.
    """
    whole_from = tl.minimum(tl.maximum(whole_from, low), high)
    whole_to = tl.maximum(tl.minimum(whole_to, high), whole_from)
    peak, total, acc = _nothing(ROWS, SPAN)
    if not PAGED or SIZE > 0:  # while memory is measured: not worth three loops; in a pattern, no tile is everybody's
        whole_from, whole_to = low, low
    if PAGED and WINDOW > 0 and SIZE == 0:
        peak, total, acc = _pass_keys(
            peak, total, acc, q, position, slope, biases, distances, phase,
            keys, values, key_scales, value_scales, table, origin,
            low, whole_from, begin, end, scale, cap, page_stride, key_stride, value_stride, scale_page_stride,
            True, DIM, BLOCK, PAGED, FORM, CAUSAL, WINDOW, CAP, ALIBI, BIASED, SIZE, LOCAL, STRIDE, KEYS, SPAN, DOT,
        )  # fmt: skip
    if PAGED and SIZE == 0:
        peak, total, acc = _pass_keys(
            peak, total, acc, q, position, slope, biases, distances, phase,
            keys, values, key_scales, value_scales, table, origin,
            whole_from, whole_to, begin, end, scale, cap, page_stride, key_stride, value_stride, scale_page_stride,
            False, DIM, BLOCK, PAGED, FORM, CAUSAL, WINDOW, CAP, ALIBI, BIASED, SIZE, LOCAL, STRIDE, KEYS, SPAN, DOT,
        )  # fmt: skip
    peak, total, acc = _pass_keys(
        peak, total, acc, q, position, slope, biases, distances, phase,
        keys, values, key_scales, value_scales, table, origin,
        whole_to, high, begin, end, scale, cap, page_stride, key_stride, value_stride, scale_page_stride,
        True, DIM, BLOCK, PAGED, FORM, CAUSAL, WINDOW, CAP, ALIBI, BIASED, SIZE, LOCAL, STRIDE, KEYS, SPAN, DOT,
    )  # fmt: skip
    return peak, total, acc


@triton.jit
def _segments_of(unit, begin, end, PLANNED: tl.constexpr, SEGMENT: tl.constexpr, DOUBLING: tl.constexpr):
    """The segments [from, to) of a unit, or all that keys [begin, end) lie in."""
    if PLANNED:
        from_segment, to_segment = tl.load(unit + 2), tl.load(unit + 3)
    else:
        from_segment = _segment_at(begin, SEGMENT, DOUBLING)
        to_segment = _segment_at(end - 1, SEGMENT, DOUBLING) + 1
    return from_segment, to_segment


@triton.jit
def _keep_part(parts, room, heads, line, kept, peak, total, acc, DIM: tl.constexpr):
    """Store a part from ``line`` on: of heads and tokens that follow one another."""
    lane, feature = tl.arange(0, acc.shape[0]), tl.arange(0, acc.shape[1])[None, :]
    totals = parts + room.to(tl.int64) * heads
    sums = totals + room.to(tl.int64) * heads
    tl.store(parts + line + lane, peak, mask=kept)
    tl.store(totals + line + lane, total, mask=kept)
    tl.store(sums + line * DIM + lane[:, None] * DIM + feature, acc, mask=kept[:, None] & (feature < DIM))


@triton.jit(do_not_specialize=["rows", "room"])
def attend_tiles(
    q,  # [tokens, heads, DIM]; the last axis is dense
    out,  # the same, dense
    parts,  # float32: peaks, totals [kv_heads, room, RATIO] and sums [kv_heads, room, RATIO, DIM]; with CUT
    keys,  # PAGED: [pages, kv_heads, BLOCK, DIM], all but pages dense; else [tokens, kv_heads, DIM]
    values,
    key_scales,  # float32 [pages, kv_heads, BLOCK], with INT8
    value_scales,
    sinks,  # [heads]
    alibi,
    biases,  # [heads, distances]: by how many tokens a key is before its query
    units,  # int32 [units, 5]: see schedule.Schedule; with PLANNED
    starts,  # int32 [rows + 1]
    context,  # int32 [rows]
    tables,  # int32 [rows, blocks]
    rows, room, table_stride, distances,
    phase, shift,  # of the first head's pattern, and from each head to the next; with SIZE
    q_stride, q_head_stride,
    page_stride, key_stride, key_head_stride, value_stride, value_head_stride, scale_page_stride,
    scale, cap, value_scale,
    RATIO: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, PAGED: tl.constexpr, FORM: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr, BIASED: tl.constexpr,
    SIZE: tl.constexpr, LOCAL: tl.constexpr, STRIDE: tl.constexpr,
    SINKS: tl.constexpr, DECODING: tl.constexpr, PLANNED: tl.constexpr, CUT: tl.constexpr, SEGMENT: tl.constexpr,
    DOUBLING: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SPAN: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Program (unit, KV head), or without ``PLANNED`` (tile, KV head): then tile i of a step is one of row r if
    ``starts[r] // QUERIES + r`` is at most i, which leaves some without tokens; where all rows have one token, it is
    that of row i.
    """
    QUERIES: tl.constexpr = ROWS // RATIO
    unit = units + tl.program_id(0) * 5
    row, first = _tile_of(tl.program_id(0), unit, starts, rows, QUERIES, DECODING, PLANNED)
    start = tl.load(starts + row)
    query = tl.load(starts + row + 1) - start
    if first >= query:
        return
    length = tl.load(context + row) if PAGED else query
    lowest = length - query + first
    highest = tl.minimum(lowest + QUERIES, length) - 1
    begin, end = _seen(lowest, highest, length, CAUSAL, WINDOW)
    whole_from, whole_to = _seen_by_all(lowest, highest, length, CAUSAL, WINDOW, KEYS)
    kv_head, lane = tl.program_id(1), tl.arange(0, ROWS)
    token, head = first + lane // RATIO, kv_head * RATIO + lane % RATIO
    there = (token < query) & (lane < QUERIES * RATIO)
    position = length - query + token
    feature = tl.arange(0, SPAN)[None, :]
    whole = there[:, None] & (feature < DIM)
    place = (start + token).to(tl.int64)
    x = tl.load(q + place[:, None] * q_stride + head[:, None] * q_head_stride + feature, mask=whole, other=0.0).to(DOT)
    slope, own_biases = _slopes(alibi, head, there, ALIBI, ROWS), biases + head * distances
    heads, origin, table = tl.num_programs(1) * RATIO, start.to(tl.int64), tables + row.to(tl.int64) * table_stride
    own_keys = keys + kv_head.to(tl.int64) * key_head_stride
    own_values = values + kv_head.to(tl.int64) * value_head_stride
    own_key_scales, own_value_scales = key_scales + kv_head * BLOCK, value_scales + kv_head * BLOCK
    from_segment, to_segment = _segments_of(unit, begin, end, PLANNED, SEGMENT, DOUBLING)
    all_of_it = there
    if CUT:
        part, together = tl.load(unit + 4), tl.minimum(query - first, QUERIES)
        all_of_it, kept = there & (part < 0), there & (part >= 0)
        line = (kv_head.to(tl.int64) * room + part) * RATIO
    peak, total, acc = _nothing(ROWS, SPAN)
    for segment in range(from_segment, to_segment):
        low = tl.maximum(_border(segment, SEGMENT, DOUBLING), begin // KEYS * KEYS)
        high = tl.minimum(_border(segment + 1, SEGMENT, DOUBLING), end)
        next_peak, next_total, next_acc = _pass_segment(
            x, position, slope, own_biases, distances, phase + head * shift,
            own_keys, own_values, own_key_scales, own_value_scales, table, origin,
            low, high, begin, end, whole_from, whole_to, scale, cap,
            page_stride, key_stride, value_stride, scale_page_stride,
            DIM, BLOCK, PAGED, FORM, CAUSAL, WINDOW, CAP, ALIBI, BIASED, SIZE, LOCAL, STRIDE, ROWS, KEYS, SPAN, DOT,
        )  # fmt: skip
        if CUT:
            _keep_part(parts, room, heads, line, kept, next_peak, next_total, next_acc, DIM)
            line += together * RATIO
        peak, total, acc = _merge(peak, total, acc, next_peak, next_total, next_acc)
    answer = _finish(peak, total, acc, sinks, head, there, value_scale, SINKS)
    at = out + (place * heads + head)[:, None] * DIM + feature
    tl.store(at, answer.to(out.dtype.element_ty), mask=all_of_it[:, None] & (feature < DIM))


@triton.jit(do_not_specialize=["room"])
def merge_parts(
    out,  # [tokens, heads, DIM] dense
    parts,  # as attend_tiles left them
    cut,  # int32 [cut, 4]: see schedule.Schedule
    sinks,  # [heads]
    starts,  # int32 [rows + 1]
    room, value_scale,
    RATIO: tl.constexpr, DIM: tl.constexpr, SINKS: tl.constexpr, QUERIES: tl.constexpr,
    LANES: tl.constexpr, SPAN: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Program (cut tile, KV head, token of the tile): its parts in order, ``AHEAD`` loaded at once."""
    tile, kv_head = cut + tl.program_id(0) * 4, tl.program_id(1)
    row, first = tl.load(tile), tl.load(tile + 1)
    start = tl.load(starts + row)
    query = tl.load(starts + row + 1) - start
    token = first + tl.program_id(2)
    if token >= query:
        return
    part, segments = tl.load(tile + 2) + tl.program_id(2), tl.load(tile + 3)
    together, heads = tl.minimum(query - first, QUERIES), tl.num_programs(1) * RATIO
    lane, feature = tl.arange(0, LANES), tl.arange(0, SPAN)[None, :]
    head, there = kv_head * RATIO + lane, lane < RATIO
    totals = parts + room.to(tl.int64) * heads
    sums = totals + room.to(tl.int64) * heads
    peak, total, acc = _nothing(LANES, SPAN)
    for segment in range(0, segments, AHEAD):
        for number in tl.static_range(AHEAD):
            known = there & (segment + number < segments)
            line = (kv_head.to(tl.int64) * room + part + (segment + number) * together) * RATIO + lane
            next_peak = tl.load(parts + line, mask=known, other=float("-inf"))
            next_total = tl.load(totals + line, mask=known, other=0.0)
            whole = known[:, None] & (feature < DIM)
            next_acc = tl.load(sums + line[:, None] * DIM + feature, mask=whole, other=0.0)
            peak, total, acc = _merge(peak, total, acc, next_peak, next_total, next_acc)
    answer = _finish(peak, total, acc, sinks, head, there, value_scale, SINKS)
    place = (start + token).to(tl.int64) * heads + head
    whole = there[:, None] & (feature < DIM)
    tl.store(out + place[:, None] * DIM + feature, answer.to(out.dtype.element_ty), mask=whole)
