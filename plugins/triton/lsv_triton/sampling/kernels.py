"""Kernels that choose and describe tokens; ``lsv_triton.sampling.ops`` says in what order they run.

A row is surveyed in chunks by many programs. Then one program lists its candidates, tokens that a bound does not
exclude, by ascending id, and another one selects among them. Thresholds are found digit by digit from counts and sums
of integers, which are exact in any order. What one program writes, only a later launch reads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lsv.nn import sample_ops, sampling
from lsv_triton.sampling.weights import FORBIDDEN_KEY, HEAVIEST, LEAST_KEY, key_of, product, scale, value_of, weigh

COLUMNS = tl.constexpr(sampling.CHOICE.itemsize // 8)  # a row's choice as int64; the draw stands in the seed's place
EDIT_COLUMNS = tl.constexpr(6)  # of int32: row (2), token, kind, first, second
_TOP_K, _TOP_P, _MIN_P, _DRAW = (
    tl.constexpr(sampling.CHOICE.fields[name][1] // 8) for name in ("top_k", "top_p", "min_p", "seed")
)
_WHOLE = tl.constexpr(sampling.WHOLE)
_NOT_FINITE, _NO_TOKEN_LEFT = tl.constexpr(sampling.NOT_FINITE), tl.constexpr(sampling.NO_TOKEN_LEFT)
_NATURAL = tl.constexpr(sample_ops.rate(1.0))
_NO_ID = tl.constexpr((1 << 31) - 1)
GROUP = tl.constexpr(32)  # tokens of which a survey keeps the largest


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
    KIND: tl.constexpr,  # of lsv.nn.sampling.Kind; one launch does the edits of one kind
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
        value = tl.where(value > 0, tl.div_rn(value, first), product(value, first, zero)) - second
    tl.store(place, value, mask=there)


@triton.jit
def survey(
    logits,  # [any, vocabulary] as they came
    x,  # what is chosen from: edited, or the same
    rows,  # int64 [programs]: which rows
    sound,  # int32 [programs, chunks]: 1 if all its logits are finite
    keys,  # int32 [programs, chunks]: of its largest
    ids,  # int32 [programs, chunks]: the lowest id of the largest
    groups,  # int32 [programs, chunks, CHUNK // GROUP]: keys of the largest of every group
    stride,
    x_stride,
    vocabulary,
    CHUNK: tl.constexpr,
):
    row = tl.load(rows + tl.program_id(0))
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
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
def list_candidates(
    x,
    choices,  # int64 [rows, COLUMNS]
    rates,  # the same memory as float32
    sound,
    keys,
    ids,
    groups,
    tokens,  # int64 [rows]: the best token, or why there is none
    listed_ids,  # int32 [rows, vocabulary]: candidates' ids, ascending
    listed_keys,  # int32 [rows, vocabulary]: of their logits
    listed_weights,  # float32 [rows, vocabulary]: exact, a weight has at most 24 significant bits
    found,  # int64 [rows, 2]: how many candidates; the weight of all tokens, where top-p asks for it
    x_stride,
    vocabulary,
    chunks,
    zero,
    EDITED: tl.constexpr,
    DRAWING: tl.constexpr,  # whether any row is drawn
    CHUNKS: tl.constexpr,
    GROUPS: tl.constexpr,
    PER_CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
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
        count = tl.full((), 0, tl.int64)
        total = tl.full((), 0, tl.int64)
        if (rate > 0) & (token >= 0):
            line, largest = x + row * x_stride, value_of(best)
            least_key = tl.full((), LEAST_KEY, tl.int64)
            least = tl.full((), 1, tl.int64)
            top_k = tl.load(choices + row * COLUMNS + _TOP_K)
            if (top_k > 0) & (top_k < vocabulary):
                least_key = kth_group(groups + row * chunks * PER_CHUNK, chunks * PER_CHUNK, top_k, GROUPS)
            else:
                top_p = tl.load(choices + row * COLUMNS + _TOP_P)
                least = min_p_weight(choices + row * COLUMNS)
                if top_p < _WHOLE:
                    total = weight_of(line, vocabulary, largest, rate, zero, BLOCK)
                    # all lighter tokens together weigh no more than what top-p may leave out
                    least = tl.maximum(least, (total - tl.maximum(scale(total, top_p), 1)) // vocabulary)
            place = row * vocabulary
            count = append(
                line, listed_ids + place, listed_keys + place, listed_weights + place, vocabulary,
                least_key, least, largest, rate, zero, BLOCK,
            )  # fmt: skip
        tl.store(found + row * 2, count)
        tl.store(found + row * 2 + 1, total)


@triton.jit
def min_p_weight(choice):
    """The least weight that min-p leaves, 1 or more."""
    return tl.maximum(scale(tl.full((), HEAVIEST, tl.int64), tl.load(choice + _MIN_P)), 1)


@triton.jit
def kth_group(groups, count, k, GROUPS: tl.constexpr):
    """A lower bound of the k-th largest key: the k-th largest of the groups' maxima; int64."""
    place = tl.arange(0, GROUPS)
    key = tl.load(groups + place, mask=place < count, other=LEAST_KEY).to(tl.int64)
    bound = tl.full((), LEAST_KEY, tl.int64)
    for bit in range(32):
        higher = bound + (tl.full((), 1, tl.int64) << (31 - bit))
        bound = tl.where(tl.sum((key >= higher).to(tl.int64), axis=0) >= k, higher, bound)
    return bound


@triton.jit
def weight_of(x, count, best, rate, zero, BLOCK: tl.constexpr):
    """The weight of all of a row's tokens."""
    sums = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, count, BLOCK):
        token = start + tl.arange(0, BLOCK)
        value = tl.load(x + token, mask=token < count, other=float("-inf")).to(tl.float32)
        sums += weigh(value, best, rate, zero)
    return tl.sum(sums, axis=0)


@triton.jit
def append(
    x, listed_ids, listed_keys, listed_weights, vocabulary, least_key, least, best, rate, zero, BLOCK: tl.constexpr
):
    """List a row's tokens of at least this key and this weight; how many there are."""
    count = tl.full((), 0, tl.int64)
    for start in range(0, vocabulary, BLOCK):
        token = start + tl.arange(0, BLOCK)
        there = token < vocabulary
        value = tl.load(x + token, mask=there, other=float("-inf")).to(tl.float32)
        key, weight = key_of(value), weigh(value, best, rate, zero)
        kept = there & (key >= least_key) & (weight >= least)
        place = count + tl.cumsum(kept.to(tl.int32), axis=0) - 1
        tl.store(listed_ids + place, token, mask=kept)
        tl.store(listed_keys + place, key, mask=kept)
        tl.store(listed_weights + place, weight.to(tl.float32), mask=kept)
        count += tl.sum(kept.to(tl.int32), axis=0)
    return count


@triton.jit
def draw(choices, listed_ids, listed_keys, listed_weights, found, tokens, vocabulary, BLOCK: tl.constexpr):
    """The filters and the draw, among a row's candidates."""
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(found + row * 2)
    if count > 0:
        choices += row * COLUMNS
        keys, weights = listed_keys + row * vocabulary, listed_weights + row * vocabulary
        total = tl.load(found + row * 2 + 1)
        least_key = tl.full((), LEAST_KEY, tl.int64)
        least = min_p_weight(choices)
        top_k = tl.load(choices + _TOP_K)
        if (top_k > 0) & (top_k < vocabulary):
            least_key = select(keys, weights, count, least_key, top_k, False, BLOCK)
            total = kept_weight(keys, weights, count, least_key, tl.full((), 1, tl.int64), BLOCK)
        top_p = tl.load(choices + _TOP_P)
        if top_p < _WHOLE:
            key = select(keys, weights, count, least_key, tl.maximum(scale(total, top_p), 1), True, BLOCK)
            least = tl.maximum(least, key.to(tl.int32).to(tl.float32, bitcast=True).to(tl.int64))
        total = kept_weight(keys, weights, count, least_key, least, BLOCK)
        target = scale(total, tl.load(choices + _DRAW))
        running = tl.full((), 0, tl.int64)
        passed = tl.full((), 0, tl.int64)
        for start in range(0, count, BLOCK):
            weight = load_weights(keys, weights, start, count, least_key, least, BLOCK)
            sums = running + tl.cumsum(weight, axis=0)
            passed += tl.sum((sums <= target).to(tl.int64), axis=0)
            running += tl.sum(weight, axis=0)
        tl.store(tokens + row, tl.load(listed_ids + row * vocabulary + passed).to(tl.int64))


@triton.jit
def load_weights(keys, weights, start, count, least_key, least, BLOCK: tl.constexpr):
    """int64 weights of candidates from ``start`` on, 0 for those below ``least_key`` or ``least``."""
    place = start + tl.arange(0, BLOCK)
    key = tl.load(keys + place, mask=place < count, other=LEAST_KEY)
    weight = tl.load(weights + place, mask=place < count, other=0.0).to(tl.int64)
    return tl.where((key >= least_key) & (weight >= least), weight, 0)


@triton.jit
def kept_weight(keys, weights, count, least_key, least, BLOCK: tl.constexpr):
    """The weight of the candidates of at least this key and this weight."""
    sums = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, count, BLOCK):
        sums += load_weights(keys, weights, start, count, least_key, least, BLOCK)
    return tl.sum(sums, axis=0)


@triton.jit
def select(keys, weights, count, least_key, limit, BY_WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key with which the amount of all candidates not below it reaches ``limit``; int64.

    Without BY_WEIGHT the amount is how many they are. With it the amount is their weight and the key the weight's bits,
    which have the same order; candidates below ``least_key`` weigh nothing. Two bits of the key are found in a pass.
    """
    found = tl.full((), 0 if BY_WEIGHT else LEAST_KEY, tl.int64)
    for digit in range(16):
        step = tl.full((), 1, tl.int64) << (30 - 2 * digit)
        one, two, three = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64)
        for start in range(0, count, BLOCK):
            if BY_WEIGHT:
                amount = load_weights(keys, weights, start, count, least_key, 1, BLOCK)
                key = amount.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64)
            else:
                place = start + tl.arange(0, BLOCK)
                key = tl.load(keys + place, mask=place < count, other=LEAST_KEY).to(tl.int64)
                amount = (place < count).to(tl.int64)
            one += tl.where(key >= found + step, amount, 0)
            two += tl.where(key >= found + 2 * step, amount, 0)
            three += tl.where(key >= found + 3 * step, amount, 0)
        digits = (tl.sum(one, axis=0) >= limit).to(tl.int64) + (tl.sum(two, axis=0) >= limit).to(tl.int64)
        found += (digits + (tl.sum(three, axis=0) >= limit).to(tl.int64)) * step
    return found


@triton.jit
def describe(
    x,
    rows,  # int64 [programs]
    chosen,  # int64 [programs]
    keys,
    groups,
    listed_ids,
    listed_keys,
    listed_weights,
    told,  # int64 [programs, 2 + most, 3]: id, bits of the logit, rank; last the weight of all and the best's bits
    counts,  # int64 [programs]: candidates
    x_stride,
    vocabulary,
    chunks,
    most,
    zero,
    CHUNKS: tl.constexpr,
    GROUPS: tl.constexpr,
    PER_CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What is said about the chosen token and the whole row; and a list of all that may be among the likeliest."""
    one = tl.program_id(0).to(tl.int64)
    line = x + tl.load(rows + one) * x_stride
    chunk = tl.arange(0, CHUNKS)
    best = value_of(tl.max(tl.load(keys + one * chunks + chunk, mask=chunk < chunks, other=LEAST_KEY), axis=0))
    token = tl.load(chosen + one)
    own = tl.load(line + token).to(tl.float32)
    sums, likelier = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64)
    for start in range(0, vocabulary, BLOCK):
        place = start + tl.arange(0, BLOCK)
        value = tl.load(line + place, mask=place < vocabulary, other=float("-inf")).to(tl.float32)
        sums += weigh(value, best, _NATURAL, zero)
        likelier += (value > own).to(tl.int64)
    told += one * (2 + most) * 3
    tl.store(told, token)
    tl.store(told + 1, own.to(tl.int32, bitcast=True).to(tl.int64))
    tl.store(told + 2, tl.sum(likelier, axis=0) + 1)
    last = told + (1 + most) * 3
    tl.store(last, tl.sum(sums, axis=0))
    tl.store(last + 1, best.to(tl.int32, bitcast=True).to(tl.int64))
    if most > 0:
        bound = kth_group(groups + one * chunks * PER_CHUNK, chunks * PER_CHUNK, most, GROUPS)
        room = one * vocabulary
        count = append(
            line, listed_ids + room, listed_keys + room, listed_weights + room, vocabulary,
            bound, 0, best, _NATURAL, zero, BLOCK,
        )  # fmt: skip
        tl.store(counts + one, count)


@triton.jit
def rank(listed_ids, listed_keys, counts, told, vocabulary, most, BLOCK: tl.constexpr):
    """The likeliest tokens, one after the other: by descending logit, then by id."""
    one = tl.program_id(0).to(tl.int64)
    ids, keys, count = listed_ids + one * vocabulary, listed_keys + one * vocabulary, tl.load(counts + one)
    told += one * (2 + most) * 3 + 3
    before = tl.full((), (1 << 63) - 1, tl.int64)
    standing = tl.full((), 1, tl.int64)
    for place in range(most):
        largest = tl.full((BLOCK,), -(1 << 63), tl.int64)
        for start in range(0, count, BLOCK):
            entry = start + tl.arange(0, BLOCK)
            key = tl.load(keys + entry, mask=entry < count, other=LEAST_KEY).to(tl.int64)
            order = (key << 32) + _NO_ID - tl.load(ids + entry, mask=entry < count, other=0)  # no two are equal
            largest = tl.maximum(largest, tl.where((entry < count) & (order < before), order, -(1 << 63)))
        following = tl.max(largest, axis=0)
        standing = tl.where((following >> 32) == (before >> 32), standing, place + 1)
        tl.store(told + place * 3, -(following & 0xFFFFFFFF) + _NO_ID)
        tl.store(told + place * 3 + 1, value_of((following >> 32).to(tl.int32)).to(tl.int32, bitcast=True).to(tl.int64))
        tl.store(told + place * 3 + 2, standing)
        before = following
