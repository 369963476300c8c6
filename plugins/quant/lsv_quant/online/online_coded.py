"""Formats of small codes made from a plain checkpoint. Activations are not quantised (W4A16, W8A16), but for fp8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from lsv_quant.online.online import Online
from lsv_quant.rounding import NOTHING, in_groups, row_chunks, to_int8
from lsv_quant.tables import BYTES, COUNTS, E2M1, NF4, nearest
from lsv_runtime.weights.codebook import Codebook, CodedLinear, to_nibbles
from lsv_runtime.weights.quantizer import LinearLayer, OfExperts

Round = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
"""x float32 [..., G] -> codes uint8 [..., G], scales float32 [...] and, for a codebook that has them, offsets."""
_SHARES = (1.0, 0.94, 0.88)
"""Fractions of a group's range, to get scales to try; weights outside are clipped."""
_NF4_SHARES = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79)
"""The same of the largest weight of an nf4 group."""


class OnlineCoded(CodedLinear):
    """Takes the plain weight and, once it is filled, rounds it, some rows at a time."""

    made_while_loading: ClassVar[bool] = True
    marks_of_all: ClassVar[frozenset[str]] = frozenset()
    """Flags of every layer's spec."""

    def __init__(
        self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter], *, codebook: Codebook, round: Round
    ) -> None:
        super().__init__(layer, codebook, tensors.get("bias"), self.marks_of_all)
        self.plain, self.round = tensors["weight"], round

    def filled(self) -> None:
        plain = self.release("plain")
        outputs, inputs = plain.shape
        group = self.codebook.group or inputs
        codes = plain.new_empty((outputs, -(-inputs * self.codebook.bits // 8)), dtype=torch.uint8)
        scales = plain.new_empty((outputs, self.codebook.groups(inputs)), dtype=torch.float32)
        offsets = torch.empty_like(scales) if self.codebook.offsets else None
        for rows in row_chunks(plain):
            found, scales[rows], *others = self.round(in_groups(plain[rows].float(), group))
            found = found.flatten(-2)[..., :inputs]
            codes[rows] = to_nibbles(found) if self.codebook.bits == 4 else found
            if offsets is not None:
                (offsets[rows],) = others
        self.hold(codes, scales, offsets)


class LeastError:
    """Keeps for each group the coding with the least error of those offered, of equal ones the first.

    A weight's squared error counts by the cube of the weight's size: an error of a large weight changes more of what
    follows. The scale of a group that contains a number that is not finite is not finite either.
    """

    def __init__(self, x: torch.Tensor) -> None:
        """x float32 [..., G]"""
        self._x, self._largest = x, x.abs().amax(dim=-1, keepdim=True).clamp(min=NOTHING)
        sizes = (x / self._largest).abs()
        self._cubes = sizes * sizes * sizes
        self._least = torch.full_like(x[..., 0], torch.inf)
        self.codes, self.scales = torch.zeros_like(x, dtype=torch.uint8), torch.full_like(self._least, torch.nan)

    def offer(self, decoded: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """Codes uint8 [..., G] and scales float32 [...], and the weights float32 [..., G] that these mean."""
        error = (self._cubes * ((decoded - self._x) / self._largest).square()).sum(dim=-1)
        better = error < self._least
        self._least = torch.where(better, error, self._least)
        self.codes = torch.where(better[..., None], codes, self.codes)
        self.scales = torch.where(better, scales, self.scales)


def to_bytes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A group's largest weight becomes 127."""
    codes, scales = to_int8(x)
    return codes.view(torch.uint8) ^ 128, scales


def to_counts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """16 steps from the smallest to the largest weight of a group; of several scales the one with the least error."""
    low, high = x.amin(dim=-1), x.amax(dim=-1)
    least = torch.full_like(low, torch.inf)
    scales, offsets = torch.ones_like(low), low.clone()
    codes = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    for share in _SHARES:
        scale = (high - low) * (share / 15)
        offset = low + (high - low) * ((1 - share) / 2)
        rounded = ((x - offset[..., None]) / scale.clamp(min=NOTHING)[..., None]).round().clamp(0, 15)
        error = (rounded * scale[..., None] + offset[..., None] - x).square().sum(dim=-1)
        better = (error < least) & (scale >= NOTHING)
        least = torch.where(better, error, least)
        scales, offsets = torch.where(better, scale, scales), torch.where(better, offset, offsets)
        codes = torch.where(better[..., None], rounded.to(torch.uint8), codes)
    return codes, scales, offsets


def to_mxfp4(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A power of two scales a group: the one that brings its largest weight between 4 and 8, where anything over 6 is
    clipped, or the next, of the two the one with the least error.

    Values tie to even (OCP Microscaling Formats 1.0, section 6.3, which takes the first scale always).
    """
    exponents = torch.frexp(x.abs().amax(dim=-1)).exponent - 3
    values = torch.tensor(E2M1, device=x.device)
    found = LeastError(x)
    for step in (0, 1):
        scales = torch.ldexp(torch.ones_like(x[..., 0]), (exponents + step).clamp(-126, 127))
        codes = nearest((x / scales[..., None]).abs(), E2M1[:8]) | (x < 0).to(torch.uint8) << 3
        found.offer(values[codes.int()] * scales[..., None], codes, scales)
    return found.codes, found.scales


def to_nf4(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The scale is a group's largest weight, or less if that errs less, and clips what is over it."""
    largest = x.abs().amax(dim=-1)
    largest = torch.where(largest < NOTHING, 1.0, largest)
    values = torch.tensor(NF4, device=x.device)
    found = LeastError(x)
    for share in _NF4_SHARES:
        scales = largest * share
        codes = nearest(x / scales[..., None], NF4)
        found.offer(values[codes.int()] * scales[..., None], codes, scales)
    return found.codes, found.scales


make_head = partial(OnlineCoded, codebook=Codebook(BYTES), round=to_bytes)
"""The output head of formats of four bits, which are too few for it, and for the embeddings of one that is tied."""


def _make(name: str, codebook: Codebook, round: Round, quantization_config: Mapping[str, Any]) -> Online:
    return Online(name, partial(OnlineCoded, codebook=codebook, round=round), make_head)


make_asym_int4_32 = partial(_make, "asym_int4_g32", Codebook(COUNTS, 32, offsets=True), to_counts)
make_asym_int4_64 = partial(_make, "asym_int4", Codebook(COUNTS, 64, offsets=True), to_counts)
make_asym_int4_128 = partial(_make, "asym_int4_g128", Codebook(COUNTS, 128, offsets=True), to_counts)
make_int8_weight_only = partial(_make, "int8_weight_only", Codebook(BYTES), to_bytes)
make_mxfp4 = partial(_make, "mxfp4", Codebook(E2M1, 32), to_mxfp4)
make_nf4 = partial(_make, "nf4", Codebook(NF4, 64), to_nf4)
make_bitsandbytes = partial(_make, "bitsandbytes", Codebook(NF4, 64), to_nf4)


def make_experts_int8(quantization_config: Mapping[str, Any]) -> OfExperts:
    """Experts like ``int8_weight_only``, everything else plain."""
    return OfExperts(make_int8_weight_only(quantization_config), "experts_int8")
