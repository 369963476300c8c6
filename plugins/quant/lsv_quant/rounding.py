"""Symmetric rounding to int8 and int4 in plain torch. Native kernels do the same arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_runtime.ops import Bindable, dtype_name
from lsv_runtime.weights import codebook

NOTHING = 1e-30
"""If all numbers of a group are smaller, they count as zeros."""
_DIVISORS = (8.0, 7.2, 7.4, 7.6, 7.8, 8.2, 8.4, 8.6, 8.8)
"""What an int4 group's largest weight becomes, to get codes to try; beyond -8 it is clipped."""
_FURTHER = (6.0, 6.2, 6.4, 6.6, 6.8, 7.0, 9.0, 9.2, 9.4, 9.6, 9.8)
"""More of them where the largest weight need not be the most important one."""
_CHUNK = 1 << 18
"""Weights rounded at a time, so that intermediate results stay in the cache."""
_EXACT = 1024
"""Inputs whose products of int8 numbers float32 sums exactly: 1024 * 127 * 128 < 2**24."""


def to_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., K] -> codes int8 [..., K] and scales float32 [...], one for each row of K: ``x ≈ codes * scales``.

    Ties round to even. A row that contains a number that is not finite gets a scale that is not finite.
    """
    x = x.float()
    largest = x.abs().amax(dim=-1)
    empty = largest < NOTHING
    inverse = torch.where(empty, 1.0, _divide(127, largest))
    codes = (x * inverse[..., None]).round().to(torch.int8)
    return codes, torch.where(empty, 1.0, largest / 127)


def to_int4(x: torch.Tensor, importance: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., G] -> codes int8 from -8 to 7 and scales float32 [...]: of several the pair with the least error.

    A weight's squared error counts by its ``importance``, which broadcasts to x; without one by the square of the
    weight, as in llama.cpp's ``make_qx_quants``: an error of a large weight changes more of what follows. For given
    codes the best scale follows from least squares.
    A group that contains a number that is not finite gets a scale that is not finite.
    """
    x = x.float()
    top, bottom = x.amax(dim=-1).clamp(min=0), x.amin(dim=-1).clamp(max=0)
    peak = torch.where(top > -bottom, top, bottom)
    empty = peak.abs() < NOTHING
    shares = torch.where(empty[..., None], 0.0, x / peak[..., None])
    counts = shares.square() if importance is None else importance.expand_as(shares)
    codes, scales = torch.zeros_like(x), torch.full_like(peak, torch.nan)
    least = torch.full_like(peak, torch.inf)
    for divisor in _DIVISORS if importance is None else (*_DIVISORS, *_FURTHER):
        rounded = (shares * -divisor).round().clamp(-8, 7)
        scale = (counts * shares * rounded).sum(dim=-1) / (counts * rounded.square()).sum(dim=-1)
        error = (counts * (rounded * scale[..., None] - shares).square()).sum(dim=-1)
        better = error < least
        least = torch.where(better, error, least)
        scales = torch.where(better, peak * scale, scales)
        codes = torch.where(better[..., None], rounded, codes)
    return codes.to(torch.int8), torch.where(empty, 1.0, scales)


def _divide(number: float, x: torch.Tensor) -> torch.Tensor:
    """``number / x``, rounded once: given a Python number, torch would multiply by the reciprocal."""
    return torch.full_like(x, number) / x


def in_groups(x: torch.Tensor, group: int) -> torch.Tensor:
    """[..., K] -> [..., groups, group], the last group padded with zeros."""
    x = functional.pad(x, (0, -x.shape[-1] % group))
    return x.unflatten(-1, (-1, group))


def to_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """int8 [..., K] from -8 to 7 -> uint8 [..., ceil(K / 2)]: code + 8, even ones in the low nibble."""
    return codebook.to_nibbles((in_groups(codes, 2).flatten(-2) + 8).view(torch.uint8))


def from_nibbles(nibbles: torch.Tensor, count: int) -> torch.Tensor:
    """uint8 [..., ceil(count / 2)] -> int8 [..., count], from -8 to 7."""
    return codebook.from_nibbles(nibbles)[..., :count].to(torch.int8) - 8


def exact_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """int8 x [..., K] and weight [N, K] -> ``x @ weight.T`` int32 [..., N], exact."""
    parts = zip(x.split(_EXACT, dim=-1), weight.split(_EXACT, dim=-1), strict=True)
    products = ((a.float() @ b.float().T).to(torch.int32) for a, b in parts)
    return torch.stack(tuple(products)).sum(dim=0, dtype=torch.int32)


def add_groups(
    x: torch.Tensor, row_scales: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor | None = None
) -> torch.Tensor:
    """int8 x [..., groups, G] and weight [N, groups, G] -> float32 [..., N]: groups' exact products, summed in order.

    Each is scaled before, by row_scales float32 [..., groups] and, if given, scales [N, groups].
    """
    y = x.new_zeros((*x.shape[:-2], len(weight)), dtype=torch.float32)
    for number in range(weight.shape[1]):
        sums = exact_product(x[..., number, :], weight[:, number]).float() * row_scales[..., number, None]
        y += sums if scales is None else sums * scales[:, number]
    return y


class RoundInt8(Bindable):
    """weight [N, K] -> codes int8 [N, K] and scales float32 [N], written into the given tensors."""

    op: ClassVar[str] = "round.int8"
    row_invariant: ClassVar[bool] = True

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def spec(self) -> OpSpec:
        return OpSpec(self.op, dtype_name(self.dtype))

    def reference(self, weight: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        for rows in row_chunks(weight):
            codes[rows], scales[rows] = to_int8(weight[rows])
        return codes


class RoundInt4(Bindable):
    """weight [N, K] -> nibbles uint8 [N, ceil(K / 2)] and scales float32 [N, groups], written into given tensors."""

    op: ClassVar[str] = "round.int4"
    row_invariant: ClassVar[bool] = True

    def __init__(self, dtype: torch.dtype, group: int) -> None:
        super().__init__()
        self.dtype, self.group = dtype, group

    def spec(self) -> OpSpec:
        return OpSpec(self.op, dtype_name(self.dtype), shape={"group": self.group})

    def reference(self, weight: torch.Tensor, nibbles: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        for rows in row_chunks(weight):
            codes, scales[rows] = to_int4(in_groups(weight[rows], self.group))
            nibbles[rows] = to_nibbles(codes.flatten(-2)[..., : weight.shape[1]])
        return nibbles


def row_chunks(weight: torch.Tensor) -> Iterator[slice]:
    """Rows to round at a time. None on meta, where memory is planned: there is nothing to round, and the shapes of
    what is held don't depend on it.
    """
    step = max(1, _CHUNK // weight.shape[1])
    rows = 0 if weight.is_meta else len(weight)
    return (slice(first, first + step) for first in range(0, rows, step))
