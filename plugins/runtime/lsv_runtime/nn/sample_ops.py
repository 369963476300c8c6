"""The links of the sampling chain as functions on tensors, in plain torch; ``lsv_runtime.nn.sampling`` chains them.

They stand in the order of the chain. Each takes ``logits`` float32 [rows, vocabulary], from ``weigh`` on ``weights``
int64 [rows, vocabulary], and works row by row. Edits of logits are sparse: they take (row, token) pairs.

Integer sums are exact in any order, so what a row draws depends neither on how a device splits its sums nor on the
other rows of the batch. ``weigh`` itself is a fixed sequence of additions and multiplications, each rounded to
float32: every implementation of it gets the same integers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

WEIGHT_BITS = 40
"""The best token weighs ``2**40``; one that is ``2**-40`` times as likely, or less, is never drawn."""

LOWEST_TEMPERATURE = 1e-5
"""At a lower one only the best tokens could be drawn anyway."""

POWER_OF_TWO = (0.6931471825, 0.2402264774, 0.05550332367, 0.009618436918, 0.001339887385, 0.0001535336196)
"""Coefficients of f, f**2 ... in 2**f = 1 + ..., |f| <= 1/2: the minimax polynomial, relative error 2e-9."""

_LOWEST_EXPONENT = -64.0
"""Weights are 0 long before this; it keeps exponents within the range of shifts."""

_CANDIDATES = 512
"""Top-p looks at so many of a row's likeliest tokens before it sorts the whole vocabulary."""

_FORBIDDEN = float("-inf")


def finite(logits: Tensor) -> Tensor:
    """Which rows hold neither NaN nor an infinity: bool [rows]."""
    low, high = logits.aminmax(dim=-1)
    return low.isfinite() & high.isfinite()


def allow_only(logits: Tensor, rows: Tensor, row_of_token: Tensor, tokens: Tensor) -> Tensor:
    """Forbid, in ``rows`` int64 [n], every token but the listed ones. In place.

    ``row_of_token`` and ``tokens``, int64 [pairs], list them: a row without any is left with none.
    """
    kept = logits[row_of_token, tokens]
    logits[rows] = _FORBIDDEN
    logits[row_of_token, tokens] = kept
    return logits


def forbid(logits: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
    """Make tokens impossible; ``rows`` and ``tokens`` int64 [pairs]. In place."""
    logits[rows, tokens] = _FORBIDDEN
    return logits


def add_bias(logits: Tensor, rows: Tensor, tokens: Tensor, bias: Tensor) -> Tensor:
    """Add ``bias`` float32 [pairs] to tokens; ``rows`` and ``tokens`` int64 [pairs], each pair once. In place."""
    logits[rows, tokens] += bias
    return logits


def penalize(logits: Tensor, rows: Tensor, tokens: Tensor, repetition: Tensor, additive: Tensor) -> Tensor:
    """Penalise tokens that have occurred; ``rows`` and ``tokens`` int64 [pairs], each pair once. In place.

    ``repetition`` float32 [pairs] divides positive and multiplies negative logits (Keskar et al., CTRL, 2019, with the
    sign rule in common use); ``additive`` float32 [pairs] (presence + frequency * count) is then subtracted.
    """
    seen = logits[rows, tokens]
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    logits[rows, tokens] = seen - additive
    return logits


def rate(temperature: float) -> float:
    """What a temperature above 0 multiplies logits by in an exponent of 2: the argument of ``weigh``."""
    return math.log2(math.e) / max(temperature, LOWEST_TEMPERATURE)


def top_k(logits: Tensor, k: Tensor) -> Tensor:
    """Forbid what is below a row's ``k``-th largest logit; tokens equal to it stay. In place.

    ``k`` int64 [rows], each from 1 to the vocabulary's size.
    """
    best = logits.topk(int(k.max()), dim=-1).values
    threshold = best.gather(-1, k.unsqueeze(-1) - 1)
    return logits.masked_fill_(logits < threshold, _FORBIDDEN)


def weigh(logits: Tensor, rate: Tensor) -> Tensor:
    """How likely each token is: int64 [rows, vocabulary], ``floor(2**(40 + (logit - best) * rate))``.

    ``best`` is the row's largest logit, ``rate`` float32 [rows]. Every step must round to float32 by itself, without
    fused multiply-adds.
    """
    exponent = (logits - logits.amax(dim=-1, keepdim=True)).mul_(rate.unsqueeze(-1)).clamp_(min=_LOWEST_EXPONENT)
    whole = exponent.round()
    part = exponent.sub_(whole)
    power = torch.full_like(part, POWER_OF_TWO[-1])
    for coefficient in (*POWER_OF_TWO[-2::-1], 1.0):
        power.mul_(part).add_(coefficient)
    mantissa = power.mul_(float(1 << 24)).to(torch.int64)  # exact: at least 2**-1/2 has 24 bits behind the point
    return mantissa.bitwise_left_shift_(WEIGHT_BITS - 24).bitwise_right_shift_(
        whole.neg_().to(torch.int64).clamp_(max=63)
    )


def top_p(weights: Tensor, fraction: Tensor) -> Tensor:
    """Keep the smallest set of the likeliest tokens that holds ``fraction / 2**32`` of the row's weight. In place.

    ``fraction`` int64 [rows]. Tokens as likely as the last one kept stay too.
    Source: Holtzman et al., The Curious Case of Neural Text Degeneration, 2020.
    """
    limit = scale(weights.sum(dim=-1), fraction).clamp(min=1)
    best = weights.topk(min(_CANDIDATES, weights.shape[-1]), dim=-1).values
    threshold = _weight_at(best, limit)
    uncovered = best.sum(dim=-1) < limit
    if bool(uncovered.any()):
        everything = weights[uncovered].sort(dim=-1, descending=True).values
        threshold[uncovered] = _weight_at(everything, limit[uncovered])
    return weights.masked_fill_(weights < threshold.unsqueeze(-1), 0)


def _weight_at(descending: Tensor, limit: Tensor) -> Tensor:
    """The weight with which each row's running sum reaches its limit (the last one if none does): int64 [rows]."""
    place = torch.searchsorted(descending.cumsum(dim=-1), limit.unsqueeze(-1))
    return descending.gather(-1, place.clamp(max=descending.shape[-1] - 1)).squeeze(-1)


def min_p(weights: Tensor, fraction: Tensor) -> Tensor:
    """Drop what is less likely than ``fraction / 2**32`` of the row's likeliest token. In place.

    ``fraction`` int64 [rows].
    """
    threshold = scale(weights.amax(dim=-1), fraction)
    return weights.masked_fill_(weights < threshold.unsqueeze(-1), 0)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Inverse CDF: the token at which a row's running weight passes ``uniform / 2**32`` of all; ids int64 [rows].

    ``uniform`` int64 [rows] are the random numbers of ``lsv_runtime.nn.philox``. Tokens of weight 0 are never drawn.
    """
    running = weights.cumsum(dim=-1)
    target = scale(running[:, -1], uniform)
    return torch.searchsorted(running, target.unsqueeze(-1), right=True).squeeze(-1)


def greedy(logits: Tensor) -> Tensor:
    """The best token, among equals the one with the lowest id: ids int64 [rows]."""
    return logits.argmax(dim=-1)


def scale(total: Tensor, fraction: Tensor) -> Tensor:
    """``floor(total * fraction / 2**32)``, all int64 [rows]; for 0 <= total < 2**60 and 0 <= fraction <= 2**32."""
    high, low = total >> 30, total & ((1 << 30) - 1)
    return (high * fraction + (low * fraction >> 30)) >> 2
