"""Kernels that describe tokens, after the survey of ``lsv_triton.sampling.kernels``.

One program finds a bound of a row's likeliest tokens, many weigh its chunks and list what is not below the bound, and
one ranks them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lsv_runtime.nn import sample_ops
from lsv_triton.sampling.candidates import append, kth_group, load_tokens
from lsv_triton.sampling.weights import LEAST_KEY, key_of, value_of, weigh

_NATURAL = tl.constexpr(sample_ops.rate(1.0))
_NO_ID = tl.constexpr((1 << 31) - 1)


@triton.jit
def find_border(
    keys,
    groups,
    bounds,  # int64 [programs, 2]: the best key, and the least key of the likeliest tokens
    counts,  # int32 [programs]: of these, none are listed so far
    chunks,
    most,
    CHUNKS: tl.constexpr,
    GROUPS: tl.constexpr,
    PER_CHUNK: tl.constexpr,
):
    one = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    best = tl.max(tl.load(keys + one * chunks + chunk, mask=chunk < chunks, other=LEAST_KEY), axis=0)
    tl.store(bounds + one * 2, best.to(tl.int64))
    tl.store(bounds + one * 2 + 1, kth_group(groups + one * chunks * PER_CHUNK, chunks * PER_CHUNK, most, GROUPS))
    tl.store(counts + one, 0)


@triton.jit
def describe(
    x,
    rows,  # int64 [programs]
    tokens,  # int64 [any]: the token of each row, negative where it has none
    bounds,
    counts,
    sums,  # int64 [programs, chunks, 2]: the weight of the chunk's tokens, and how many are likelier than the row's
    listed_keys,  # int32 [programs, ROOM]: of all that may be among the likeliest
    listed_ids,  # int32 [programs, ROOM]
    x_stride,
    vocabulary,
    most,
    zero,
    ROOM: tl.constexpr,
    CHUNK: tl.constexpr,
):
    one = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + one)
    line = x + row * x_stride
    own = tl.load(line + tl.maximum(tl.load(tokens + row), 0)).to(tl.float32)
    best = value_of(tl.load(bounds + one * 2).to(tl.int32))
    token = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    there = token < vocabulary
    value = tl.load(line + token, mask=there, other=float("-inf")).to(tl.float32)
    place = (one * tl.num_programs(1) + tl.program_id(1)) * 2
    tl.store(sums + place, tl.sum(weigh(value, best, _NATURAL, zero), axis=0))
    tl.store(sums + place + 1, tl.sum((value > own).to(tl.int64), axis=0))
    if most > 0:
        key = key_of(value)
        append(key, token, there & (key >= tl.load(bounds + one * 2 + 1)), counts, listed_keys, listed_ids, one, ROOM)


@triton.jit
def rank(
    x,
    rows,
    tokens,
    sound,
    bounds,
    counts,
    sums,
    listed_keys,
    listed_ids,
    told,  # int64 [programs, 2 + most, 3], as ``lsv_runtime.nn.sampling.Describe`` has it
    x_stride,
    vocabulary,
    chunks,
    most,
    ROOM: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What is said about the row's token and the whole row, and the likeliest tokens one after the other."""
    one = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + one)
    line = x + row * x_stride
    token = tl.load(tokens + row)
    told += one * (2 + most) * 3
    chunk = tl.arange(0, CHUNKS)
    parts = sums + (one * chunks + chunk) * 2
    tl.store(told, token)
    tl.store(told + 1, bits_of(tl.load(line + tl.maximum(token, 0)).to(tl.float32)))
    tl.store(told + 2, tl.sum(tl.load(parts + 1, mask=chunk < chunks, other=0), axis=0) + 1)
    last = told + (1 + most) * 3
    tl.store(last, tl.sum(tl.load(parts, mask=chunk < chunks, other=0), axis=0))
    tl.store(last + 1, bits_of(value_of(tl.load(bounds + one * 2).to(tl.int32))))
    is_sound = tl.min(tl.load(sound + one * chunks + chunk, mask=chunk < chunks, other=1), axis=0)
    tl.store(last + 2, tl.where(token >= 0, is_sound, 0).to(tl.int64))
    if most > 0:
        count = tl.load(counts + one)
        if count <= ROOM:
            rank_tokens(listed_keys + one * ROOM, listed_ids + one * ROOM, count, told + 3, most, True, BLOCK)
        else:
            rank_tokens(line, listed_ids, vocabulary, told + 3, most, False, BLOCK)


@triton.jit
def rank_tokens(line, ids, count, told, most, LISTED: tl.constexpr, BLOCK: tl.constexpr):
    """The likeliest tokens: by descending logit, then by id."""
    before = tl.full((), (1 << 63) - 1, tl.int64)
    standing = tl.full((), 1, tl.int64)
    for place in range(most):
        largest = tl.full((BLOCK,), -(1 << 63), tl.int64)
        for start in range(0, count, BLOCK):
            key, _value, token = load_tokens(line, ids, start, count, LISTED, BLOCK)
            order = (key.to(tl.int64) << 32) + _NO_ID - token  # no two are equal
            there = (start + tl.arange(0, BLOCK) < count) & (order < before)
            largest = tl.maximum(largest, tl.where(there, order, -(1 << 63)))
        following = tl.max(largest, axis=0)
        standing = tl.where((following >> 32) == (before >> 32), standing, place + 1)
        tl.store(told + place * 3, -(following & 0xFFFFFFFF) + _NO_ID)
        tl.store(told + place * 3 + 1, bits_of(value_of((following >> 32).to(tl.int32))))
        tl.store(told + place * 3 + 2, standing)
        before = following


@triton.jit
def bits_of(x):
    """The bits of a float32 as int64."""
    return x.to(tl.int32, bitcast=True).to(tl.int64)
