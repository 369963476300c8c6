"""Kernels that choose tokens; ``lsv_triton.sampling.ops`` says in what order they run.

All rows of a step go through each launch together. A row is surveyed in chunks by many programs, and one program finds
its best token. For a row that draws, many programs then weigh its chunks and list its candidates, and one program
selects among them. What one program writes, only a later launch reads, but for the length of a list.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lsv_runtime.nn import sampling
from lsv_triton.sampling.candidates import (
    BY_ID,
    BY_KEY,
    BY_WEIGHT,
    GROUP,
    append,
    kept_weight,
    kth_group,
    select,
    weight_of_groups,
)
from lsv_triton.sampling.weights import FORBIDDEN_KEY, HEAVIEST, LEAST_KEY, key_of, product, scale, value_of, weigh

# A row's choice as int64. In the seed's place stands the draw, in the position's the row's place among those that draw.
COLUMNS = tl.constexpr(sampling.CHOICE.itemsize // 8)
EDIT_COLUMNS = tl.constexpr(6)  # of int32: row (2), token, kind, first, second
_TOP_K, _TOP_P, _MIN_P, _DRAW, _PLACE = (
    tl.constexpr(sampling.CHOICE.fields[name][1] // 8) for name in ("top_k", "top_p", "min_p", "seed", "position")
)
_WHOLE = tl.constexpr(sampling.WHOLE)
_NOT_FINITE, _NO_TOKEN_LEFT = tl.constexpr(sampling.NOT_FINITE), tl.constexpr(sampling.NO_TOKEN_LEFT)
_NO_ID = tl.constexpr((1 << 31) - 1)


@triton.jit(do_not_specialize=["count"])
def edit(
    logits,  # [rows, vocabulary] as they came
    edited,  # float32, dense: what is changed
    edits,  # int32 [count, EDIT_COLUMNS]
    floats,  # the same memory as float32
    count,
    stride,
    vocabulary,
    zero,
    KIND: tl.constexpr,  # of lsv_runtime.nn.sampling.Kind; one launch does the edits of one kind
    BLOCK: tl.constexpr,
):
    entry = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) * EDIT_COLUMNS
    there = entry < count * EDIT_COLUMNS
    there = there & (tl.load(edits + entry + 3, mask=there, other=-1) == KIND)
    row = tl.load(edits + entry, mask=there, other=0).to(tl.int64)
    token = tl.load(edits + entry + 2, mask=there, other=0)
    first = tl.load(floats + entry + 4, mask=there, other=1.0)
    second = tl.load(floats + entry + 5, mask=there, other=0.0)
    place = edited + row * vocabulary + token
    value = tl.load(place, mask=there, other=0.0)
    if KIND == 0:
        value = tl.load(logits + row * stride + token, mask=there, other=0.0).to(tl.float32)
    elif KIND == 1:
        value = tl.full((BLOCK,), float("-inf"), tl.float32)
    elif KIND == 2:
        value = value + first
    else:
        tl.static_assert(KIND == 3)
        value = tl.where(value > 0, tl.div_rn(value, first), product(value, first, zero)) - second
    tl.store(place, value, mask=there)


@triton.jit
def survey(
    logits,  # [any, vocabulary] as they came
    x,  # what is chosen from: edited, or the same
    rows,  # int64 [programs]: which rows, if PICKED
    sound,  # int32 [programs, chunks]: 1 if all its logits are finite
    keys,  # int32 [programs, chunks]: of its largest
    ids,  # int32 [programs, chunks]: the lowest id of the largest
    groups,  # int32 [programs, chunks, CHUNK // GROUP]: keys of the largest of every group
    stride,
    x_stride,
    vocabulary,
    PICKED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    place = row * tl.num_programs(1) + tl.program_id(1)
    if PICKED:
        row = tl.load(rows + row)
    token = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    there = token < vocabulary
    raw = tl.load(logits + row * stride + token, mask=there, other=0.0).to(tl.float32)
    endless = (raw.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000
    tl.store(sound + place, 1 - tl.max(endless.to(tl.int32), axis=0))
    key = tl.where(there, key_of(tl.load(x + row * x_stride + token, mask=there, other=0.0).to(tl.float32)), LEAST_KEY)
    largest = tl.max(key, axis=0)
    tl.store(keys + place, largest)
    tl.store(ids + place, tl.min(tl.where(key == largest, token, _NO_ID), axis=0))
    maxima = tl.max(tl.reshape(key, (CHUNK // GROUP, GROUP)), axis=1)
    tl.store(groups + place * (CHUNK // GROUP) + tl.arange(0, CHUNK // GROUP), maxima)


@triton.jit
def find_best(
    choices,  # int64 [rows, COLUMNS]
    rates,  # the same memory as float32
    sound,
    keys,
    ids,
    groups,
    tokens,  # int64 [rows]: the best token, or why there is none
    bounds,  # int64 [places, 3] of rows that draw: the best key, the least key and the least weight of candidates
    counts,  # int32 [places]: candidates that are listed so far, none
    vocabulary,
    chunks,
    zero,
    EDITED: tl.constexpr,
    DRAWING: tl.constexpr,  # whether any row is drawn
    CHUNKS: tl.constexpr,
    GROUPS: tl.constexpr,
    PER_CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    key = tl.load(keys + row * chunks + chunk, mask=chunk < chunks, other=LEAST_KEY)
    best = tl.max(key, axis=0)
    first = tl.load(ids + row * chunks + chunk, mask=chunk < chunks, other=_NO_ID)
    token = tl.min(tl.where(key == best, first, _NO_ID), axis=0).to(tl.int64)
    if EDITED:
        token = tl.where(best <= FORBIDDEN_KEY, _NO_TOKEN_LEFT, token)
    is_sound = tl.min(tl.load(sound + row * chunks + chunk, mask=chunk < chunks, other=1), axis=0)
    token = tl.where(is_sound == 1, token, _NOT_FINITE)
    tl.store(tokens + row, token)
    if DRAWING:
        rate = tl.load(rates + row * COLUMNS * 2)
        if (rate > 0) & (token >= 0):
            choices += row * COLUMNS
            groups += row * chunks * PER_CHUNK
            least_key = tl.full((), LEAST_KEY, tl.int64)
            least = tl.full((), 1, tl.int64)
            top_k, top_p = tl.load(choices + _TOP_K), tl.load(choices + _TOP_P)
            if (top_k > 0) & (top_k < vocabulary):
                least_key = kth_group(groups, chunks * PER_CHUNK, top_k, GROUPS)
            else:
                least = min_p_weight(choices)
                if top_p < _WHOLE:
                    # All lighter tokens together weigh no more than what top-p may leave out, of the groups' maxima
                    # alone: of all tokens it may leave out no less.
                    total = weight_of_groups(groups, chunks * PER_CHUNK, value_of(best), rate, zero, GROUPS)
                    least = tl.maximum(least, (total - tl.maximum(scale(total, top_p), 1)) // vocabulary)
            place = tl.load(choices + _PLACE)
            tl.store(bounds + place * 3, best.to(tl.int64))
            tl.store(bounds + place * 3 + 1, least_key)
            tl.store(bounds + place * 3 + 2, least)
            tl.store(counts + place, 0)


@triton.jit
def min_p_weight(choice):
    """The least weight that min-p leaves, 1 or more."""
    return tl.maximum(scale(tl.full((), HEAVIEST, tl.int64), tl.load(choice + _MIN_P)), 1)


@triton.jit
def is_filtered(choice, vocabulary):
    """Whether top-k or top-p say which tokens may be drawn."""
    top_k = tl.load(choice + _TOP_K)
    return ((top_k > 0) & (top_k < vocabulary)) | (tl.load(choice + _TOP_P) < _WHOLE)


@triton.jit
def list_candidates(
    x,
    choices,
    rates,
    tokens,
    bounds,
    counts,
    sums,  # int64 [places, chunks]: the weight of the chunk's tokens, without filters only of those that min-p leaves
    listed_keys,  # int32 [places, ROOM]: of candidates, where top-k or top-p ask for them
    listed_ids,  # int32 [places, ROOM]
    x_stride,
    vocabulary,
    zero,
    ROOM: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    rate = tl.load(rates + row * COLUMNS * 2)
    if (rate > 0) & (tl.load(tokens + row) >= 0):
        choices += row * COLUMNS
        place = tl.load(choices + _PLACE)
        best = value_of(tl.load(bounds + place * 3).to(tl.int32))
        least_key, least = tl.load(bounds + place * 3 + 1), tl.load(bounds + place * 3 + 2)
        token = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
        there = token < vocabulary
        value = tl.load(x + row * x_stride + token, mask=there, other=float("-inf")).to(tl.float32)
        weight = weigh(value, best, rate, zero)
        kept = there & (weight >= least)
        own = sums + place * tl.num_programs(1) + tl.program_id(1)
        if is_filtered(choices, vocabulary):
            tl.store(own, tl.sum(weight, axis=0))
            key = key_of(value)
            append(key, token, kept & (key >= least_key), counts, listed_keys, listed_ids, place, ROOM)
        else:
            tl.store(own, tl.sum(tl.where(kept, weight, 0), axis=0))


@triton.jit
def draw(
    x,
    choices,
    rates,
    tokens,
    bounds,
    counts,
    sums,
    listed_keys,
    listed_ids,
    x_stride,
    vocabulary,
    chunks,
    zero,
    ROOM: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    FIRST: tl.constexpr,  # of the 16 digits of an id, those before it are 0
    BLOCK: tl.constexpr,
):
    """The filters and the draw."""
    row = tl.program_id(0).to(tl.int64)
    rate = tl.load(rates + row * COLUMNS * 2)
    if (rate > 0) & (tl.load(tokens + row) >= 0):
        choices += row * COLUMNS
        line = x + row * x_stride
        place = tl.load(choices + _PLACE)
        best = value_of(tl.load(bounds + place * 3).to(tl.int32))
        chunk = tl.arange(0, CHUNKS)
        weights = tl.load(sums + place * chunks + chunk, mask=chunk < chunks, other=0)
        keys, ids, count = listed_keys + place * ROOM, listed_ids + place * ROOM, tl.load(counts + place)
        if is_filtered(choices, vocabulary):
            total = tl.sum(weights, axis=0)
            if count <= ROOM:
                token = draw_filtered(
                    keys, ids, count, choices, total, best, rate, vocabulary, zero, True, FIRST, BLOCK
                )
            else:
                token = draw_filtered(
                    line, ids, vocabulary, choices, total, best, rate, vocabulary, zero, False, FIRST, BLOCK
                )
        else:
            token = draw_any(line, choices, weights, best, rate, vocabulary, zero, CHUNK, CHUNKS, BLOCK)
        tl.store(tokens + row, token)


@triton.jit
def draw_any(
    line, choice, weights, best, rate, vocabulary, zero,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A token that min-p leaves: the chunk first, by the weights of all chunks."""
    target = scale(tl.sum(weights, axis=0), tl.load(choice + _DRAW))
    passed = tl.sum((tl.cumsum(weights, axis=0) <= target).to(tl.int32), axis=0)
    before = tl.sum(tl.where(tl.arange(0, CHUNKS) < passed, weights, 0), axis=0)
    least, first = min_p_weight(choice), passed * CHUNK
    inside = tl.full((), 0, tl.int32)
    for start in range(0, CHUNK, BLOCK):
        token = first + start + tl.arange(0, BLOCK)
        value = tl.load(line + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
        weight = weigh(value, best, rate, zero)
        weight = tl.where(weight >= least, weight, 0)
        inside += tl.sum((before + tl.cumsum(weight, axis=0) <= target).to(tl.int32), axis=0)
        before += tl.sum(weight, axis=0)
    return (first + inside).to(tl.int64)


@triton.jit
def draw_filtered(
    line, ids, count, choice, total, best, rate, vocabulary, zero,
    LISTED: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A token that top-k, top-p and min-p leave, out of ``count`` candidates; ``total`` is the weight of all tokens."""
    least_key = tl.full((), LEAST_KEY, tl.int64)
    least = min_p_weight(choice)
    top_k = tl.load(choice + _TOP_K)
    if (top_k > 0) & (top_k < vocabulary):
        least_key = select(line, ids, count, least_key, 0, top_k, best, rate, zero, BY_KEY, LISTED, 0, BLOCK)
        total = kept_weight(line, ids, count, least_key, 1, best, rate, zero, LISTED, BLOCK)
    top_p = tl.load(choice + _TOP_P)
    if top_p < _WHOLE:
        limit = tl.maximum(scale(total, top_p), 1)
        key = select(line, ids, count, least_key, 1, limit, best, rate, zero, BY_WEIGHT, LISTED, 0, BLOCK)
        least = tl.maximum(least, key.to(tl.int32).to(tl.float32, bitcast=True).to(tl.int64))
    total = kept_weight(line, ids, count, least_key, least, best, rate, zero, LISTED, BLOCK)
    left = total - scale(total, tl.load(choice + _DRAW))  # what the token weighs with those behind it, at least
    return select(line, ids, count, least_key, least, left, best, rate, zero, BY_ID, LISTED, FIRST, BLOCK)
