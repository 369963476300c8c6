"""Candidates of a row, tokens that a bound does not exclude: the bound, listing them, and finding one among them.

A list is filled by many programs, in any order. Where there are more candidates than it has room for, the row of logits
itself takes its place. What is looked for is found digit by digit, from counts and sums of integers, which are exact in
any order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lsv_triton.sampling.weights import FORBIDDEN_KEY, LEAST_KEY, key_of, value_of, weigh

GROUP = tl.constexpr(32)  # tokens of which a survey keeps the largest
BY_KEY, BY_WEIGHT, BY_ID = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


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
def weight_of_groups(groups, count, best, rate, zero, GROUPS: tl.constexpr):
    """The weight of the largest tokens of all groups."""
    place = tl.arange(0, GROUPS)
    key = tl.load(groups + place, mask=place < count, other=LEAST_KEY)
    key = tl.where(key == LEAST_KEY, FORBIDDEN_KEY, key)  # groups of no token
    return tl.sum(weigh(value_of(key), best, rate, zero), axis=0)


@triton.jit
def append(key, token, kept, counts, listed_keys, listed_ids, place, ROOM: tl.constexpr):
    """List tokens; the number of all goes on counting where there is no room."""
    count = tl.sum(kept.to(tl.int32), axis=0)
    if count > 0:
        entry = tl.atomic_add(counts + place, count, sem="relaxed") + tl.cumsum(kept.to(tl.int32), axis=0) - 1
        kept = kept & (entry < ROOM)
        tl.store(listed_keys + place * ROOM + entry, key, mask=kept)
        tl.store(listed_ids + place * ROOM + entry, token, mask=kept)


@triton.jit
def load_tokens(line, ids, start, count, LISTED: tl.constexpr, BLOCK: tl.constexpr):
    """Keys, logits and ids of tokens from ``start`` on: of a list of keys and ids, or of a row of logits.

    Behind the last one there are forbidden tokens.
    """
    place = start + tl.arange(0, BLOCK)
    if LISTED:
        key = tl.load(line + place, mask=place < count, other=FORBIDDEN_KEY)
        value = value_of(key)
        token = tl.load(ids + place, mask=place < count, other=0)
    else:
        value = tl.load(line + place, mask=place < count, other=float("-inf")).to(tl.float32)
        key = key_of(value)
        token = place
    return key, value, token


@triton.jit
def kept_weight(line, ids, count, least_key, least, best, rate, zero, LISTED: tl.constexpr, BLOCK: tl.constexpr):
    """The weight of the candidates of at least this key and this weight."""
    sums = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, count, BLOCK):
        key, value, _ids = load_tokens(line, ids, start, count, LISTED, BLOCK)
        weight = weigh(value, best, rate, zero)
        sums += tl.where((key >= least_key) & (weight >= least), weight, 0)
    return tl.sum(sums, axis=0)


@triton.jit
def select(
    line, ids, count, least_key, least, limit, best, rate, zero,
    BY: tl.constexpr, LISTED: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest number with which the amount of all candidates not below it reaches ``limit``; int64.

    With BY_KEY the numbers are keys and the amount is how many candidates they are. Else it is their weight, and
    candidates below ``least_key`` or ``least`` weigh nothing; with BY_WEIGHT the numbers are the weights' bits as
    float32 (exact, a weight has at most 24 significant bits), which have the same order, with BY_ID ids. Two bits of
    the number are found in a pass.
    """
    found = tl.full((), LEAST_KEY if BY == BY_KEY else 0, tl.int64)
    for digit in range(FIRST, 16):
        step = tl.full((), 1, tl.int64) << (30 - 2 * digit)
        one, two, three = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64)
        for start in range(0, count, BLOCK):
            key, value, token = load_tokens(line, ids, start, count, LISTED, BLOCK)
            if BY == BY_KEY:
                number = key.to(tl.int64)
                amount = (start + tl.arange(0, BLOCK) < count).to(tl.int64)
            else:
                weight = weigh(value, best, rate, zero)
                amount = tl.where((key >= least_key) & (weight >= least), weight, 0)
                if BY == BY_WEIGHT:
                    number = amount.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64)
                else:
                    number = token.to(tl.int64)
            one += tl.where(number >= found + step, amount, 0)
            two += tl.where(number >= found + 2 * step, amount, 0)
            three += tl.where(number >= found + 3 * step, amount, 0)
        digits = (tl.sum(one, axis=0) >= limit).to(tl.int64) + (tl.sum(two, axis=0) >= limit).to(tl.int64)
        found += (digits + (tl.sum(three, axis=0) >= limit).to(tl.int64)) * step
    return found
