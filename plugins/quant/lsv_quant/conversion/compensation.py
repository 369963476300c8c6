"""Rounding to int4 that makes up for its errors (GPTQ; Frantar et al. 2022, https://arxiv.org/abs/2210.17323).

A layer's error on the activations it was given is a quadratic form in the error of its weights; the form's matrix is
the second moment of the inputs. Inputs are rounded one after the other, those with the largest moment first. The error
of each is spread over those that are still to come, so that their rounding takes it back.
"""

from __future__ import annotations

import torch

from lsv_quant.rounding import RoundInt4, in_groups, row_chunks, to_int4, to_nibbles

_BLOCK = 128
"""Inputs rounded before the ones after them are corrected all at once."""
_DAMPING = 0.05
"""Of the mean of the moment's diagonal, added to each of its entries: a text shows only some of what inputs can be."""
_LEAST_IMPORTANCE = 1e-6
"""Of an input that the text never used, where the mean is 1."""


class CompensatedInt4(RoundInt4):
    """As ``RoundInt4``, for inputs of the given second moment, float32 [K, K]. Scales are exact in bfloat16."""

    def __init__(self, dtype: torch.dtype, group: int, moment: torch.Tensor) -> None:
        super().__init__(dtype, group)
        self.moment = moment

    def reference(self, weight: torch.Tensor, nibbles: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        choose_scales(weight, self.moment.diagonal(), self.group, scales)
        codes = compensate(weight, self.moment, scales, self.group)
        return nibbles.copy_(to_nibbles(codes))


def choose_scales(weight: torch.Tensor, importance: torch.Tensor, group: int, scales: torch.Tensor) -> None:
    """Write scales of weight [N, K] into ``scales`` float32 [N, groups]; errors of inputs count by ``importance`` [K].

    They are rounded to bfloat16, as files hold them.
    """
    mean = importance.mean()
    importance = importance / torch.where(mean > 0, mean, 1.0) + _LEAST_IMPORTANCE
    grouped = in_groups(importance[None], group)
    for rows in row_chunks(weight):
        _, found = to_int4(in_groups(weight[rows], group), grouped)
        scales[rows] = found.bfloat16().float()


def compensate(weight: torch.Tensor, moment: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """Codes int8 [N, K] from -8 to 7 of weight [N, K], given scales float32 [N, groups of inputs].

    ``moment`` is float32 [K, K] and finite.
    """
    order = moment.diagonal().argsort(descending=True, stable=True)
    upper = _invert(moment[order][:, order])
    steps = scales.T[order // group]
    left = weight.T[order].float()
    codes = torch.empty_like(left)
    for first in range(0, len(left), _BLOCK):
        last = min(first + _BLOCK, len(left))
        errors = torch.empty_like(left[first:last])
        for row in range(first, last):
            codes[row] = (left[row] / steps[row]).round_().clamp_(-8, 7)
            errors[row - first] = (left[row] - codes[row] * steps[row]) / upper[row, row]
            left[row + 1 : last].addr_(upper[row, row + 1 : last], errors[row - first], alpha=-1)
        left[last:].addmm_(upper[first:last, last:].T, errors, alpha=-1)
    found = torch.empty_like(codes, dtype=torch.int8)
    found[order] = codes.to(torch.int8)
    return found.T.contiguous()


def _invert(moment: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor of the inverse of a damped moment, which is damped further until it has one.

    The moment is scaled before, for only proportions matter.
    """
    mean = moment.diagonal().mean()
    moment = moment / torch.where(mean > 0, mean, 1.0)
    damping = torch.full((len(moment),), _DAMPING, device=moment.device)
    while True:
        damped = moment + torch.diag(damping)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not failed:
            return upper  # type: ignore[no-any-return]
        damping = damping * 10
