"""The values of codes: tables for ``lsv_runtime.weights.codebook.Codebook``, and the code with the nearest value."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import torch

BYTES = tuple(float(number) for number in range(-128, 128))
"""Values of an int8 whose sign bit is flipped."""
NIBBLES = tuple(float(number) for number in range(-8, 8))
COUNTS = tuple(float(number) for number in range(16))
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Four bits of sign, exponent, exponent, mantissa (OCP Microscaling Formats 1.0, section 5.3.3)."""
E4M3 = tuple(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist())
"""A byte of sign, four bits of exponent, three of mantissa (Micikevicius et al. 2022, FP8 formats for deep learning).
"""
FP4 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0, -0.0, -0.0625, -8.0, -12.0, -4.0, -6.0, -2.0, -3.0)
"""bitsandbytes' own four bits, times 12; there a block's largest weight has the value 1."""
# fmt: off
EXACT_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)
# fmt: on
"""Quantiles of a normal distribution (Dettmers et al. 2023, QLoRA, appendix E)."""
NF4 = tuple(torch.tensor(EXACT_NF4).bfloat16().tolist())
"""The same, each rounded to bfloat16: an error of 1/256 at most, a thirtieth of what four bits cost."""


def nearest(x: torch.Tensor, ordered: tuple[float, ...]) -> torch.Tensor:
    """For each of x the index (uint8) of the nearest value in ``ordered``; of two equally near ones the even index."""
    middles, starts, per_unit = (part.to(x.device) for part in _steps(ordered))
    bins = ((x - ordered[0]) * per_unit).clamp_(0, len(starts) - 1).int().clamp_(min=0).flatten()
    places = starts.index_select(0, bins)
    return (places + (x.flatten() > middles.index_select(0, places))).to(torch.uint8).reshape(x.shape)


@cache
def _steps(ordered: tuple[float, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The range of values in bins so narrow that each contains at most one midpoint between two values: the midpoints,
    how many lie below each bin, and bins per unit.

    A midpoint that belongs to the value above it is moved down slightly.
    """
    middles = torch.tensor([(low + high) / 2 for low, high in pairwise(ordered)])
    below = torch.nextafter(middles, torch.tensor(-torch.inf))
    middles = torch.where(torch.arange(len(middles)) % 2 == 0, middles, below)
    per_unit = 2 / middles.diff().min()
    edges = ordered[0] + torch.arange(int((ordered[-1] - ordered[0]) * per_unit) + 1) / per_unit
    starts = torch.bucketize(edges - 0.1 / per_unit, middles).int()
    return torch.cat((middles, torch.tensor([torch.inf]))), starts, per_unit
