"""What a block's bytes mean, type by type (ggml's ``ggml-common.h`` and ``ggml-quants.c``).

A weight is ``(code + least) * scale + offset``, or ``table[code] * scale``, with a scale and an offset for each group
of the type's form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from lsv_quant.gguf.types import TYPES, Form
from lsv_runtime.weights.codebook import to_nibbles

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Read = Callable[[torch.Tensor], torch.Tensor]


class Meaning(NamedTuple):
    """Of blocks uint8 [..., bytes]: codes uint8 [..., weights], scales and offsets float32 [..., groups]."""

    least: int
    codes: Read
    scales: Read
    offsets: Read | None = None
    table: tuple[int, ...] | None = None

    def whole(self, blocks: torch.Tensor) -> torch.Tensor:
        """Of blocks the whole numbers int16 [..., weights] that scales are multiplied by."""
        codes = self.codes(blocks)
        if self.table is not None:
            return torch.tensor(self.table, dtype=torch.int16)[codes.int()]
        return codes.short() + self.least


TABLES = {
    "IQ4_NL": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    "MXFP4": (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
}
"""ggml's ``kvalues_iq4nl`` and ``kvalues_mxfp4``: the latter are twice the numbers that four bits of e2m1 mean."""


def _half(place: int) -> Read:
    """The float16 at an offset."""
    return lambda blocks: blocks[..., place : place + 2].contiguous().view(torch.float16).float()


def _nibbles(first: int, width: int) -> Read:
    """Of every ``width`` bytes first all low halves, then all high ones."""

    def read(blocks: torch.Tensor) -> torch.Tensor:
        pairs = blocks[..., first:].unflatten(-1, (-1, width))
        return torch.stack((pairs & 15, pairs >> 4), dim=-2).flatten(-3)

    return read


def _fifth_bits(first: int) -> Read:
    """The 32 bits of four bytes."""

    def read(blocks: torch.Tensor) -> torch.Tensor:
        shifts = torch.arange(8, dtype=torch.uint8)
        return (blocks[..., first : first + 4, None] >> shifts & 1).flatten(-2)

    return read


def _five(low: Read, high: Read) -> Read:
    return lambda blocks: low(blocks) | high(blocks) << 4


def _fifth_bits_k(blocks: torch.Tensor) -> torch.Tensor:
    """32 bytes: bit n of each belongs to group n."""
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    return (blocks[..., None, 16:48] >> shifts & 1).flatten(-2)


def _two_bits(first: int) -> Read:
    """Of two times 32 bytes first all lowest bit pairs, then all next ones, up to the highest."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    return lambda blocks: (blocks[..., first : first + 64].unflatten(-1, (2, 1, 32)) >> shifts & 3).flatten(-3)


def _three_k(blocks: torch.Tensor) -> torch.Tensor:
    """32 bytes of high bits, bit n of each for weights n * 32 to n * 32 + 31, and 64 of low bit pairs."""
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    high = (blocks[..., None, :32] >> shifts & 1).flatten(-2)
    return _two_bits(32)(blocks) | high << 2


def _scales_three_k(blocks: torch.Tensor) -> torch.Tensor:
    """Sixteen scales of six bits in twelve bytes: low halves in the first eight, high bit pairs in the last four."""
    low, high = blocks[..., 96:104], blocks[..., 104:108]
    halves = torch.cat((low & 15, low >> 4), dim=-1)
    pairs = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1)
    return _half(108)(blocks) * ((halves | pairs << 4).float() - 32)


def _scales_iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    """Eight scales of six bits: low halves two by two in four bytes, high bit pairs in the two bytes before them."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
    low = torch.stack((blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4), dim=-1).flatten(-2)
    high = (blocks[..., 2:4, None] >> shifts & 3).flatten(-2)
    return _half(0)(blocks) * ((low | high << 4).float() - 32)


def _powers(blocks: torch.Tensor) -> torch.Tensor:
    """A byte of exponent, half of what it means in OCP Microscaling Formats 1.0, section 5.4.1."""
    return torch.ldexp(torch.ones_like(blocks[..., :1], dtype=torch.float32), blocks[..., :1].int() - 128)


def _six_k(blocks: torch.Tensor) -> torch.Tensor:
    """128 bytes of low halves and 64 of high bit pairs, each for two times 128 weights."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high = blocks[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts & 3
    return _nibbles(0, 64)(blocks[..., :128]) | high.flatten(-3) << 4


def _scales_six_k(blocks: torch.Tensor) -> torch.Tensor:
    return _half(208)(blocks) * blocks[..., 192:208].contiguous().view(torch.int8).float()


def _six_bits(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight scales and eight offsets of six bits in twelve bytes: the first four of both are stored directly, with the
    high bits of the last four above them; the low bits of those share the last four bytes.
    """
    scales, offsets, low = blocks[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    return (
        torch.cat((scales & 63, (low & 15) | (scales >> 6 << 4)), dim=-1).float(),
        torch.cat((offsets & 63, (low >> 4) | (offsets >> 6 << 4)), dim=-1).float(),
    )


def _scales_k(blocks: torch.Tensor) -> torch.Tensor:
    return _half(0)(blocks) * _six_bits(blocks)[0]


def _offsets_k(blocks: torch.Tensor) -> torch.Tensor:
    return -(_half(2)(blocks) * _six_bits(blocks)[1])


MEANINGS = {
    "Q2_K": Meaning(
        0,
        _two_bits(16),
        lambda blocks: _half(80)(blocks) * (blocks[..., :16] & 15).float(),
        lambda blocks: -(_half(82)(blocks) * (blocks[..., :16] >> 4).float()),
    ),
    "Q3_K": Meaning(-4, _three_k, _scales_three_k),
    "IQ4_NL": Meaning(0, _nibbles(2, 16), _half(0), table=TABLES["IQ4_NL"]),
    "IQ4_XS": Meaning(0, _nibbles(8, 16), _scales_iq4_xs, table=TABLES["IQ4_NL"]),
    "MXFP4": Meaning(0, _nibbles(1, 16), _powers, table=TABLES["MXFP4"]),
    "Q4_0": Meaning(-8, _nibbles(2, 16), _half(0)),
    "Q4_1": Meaning(0, _nibbles(4, 16), _half(0), _half(2)),
    "Q5_0": Meaning(-16, _five(_nibbles(6, 16), _fifth_bits(2)), _half(0)),
    "Q5_1": Meaning(0, _five(_nibbles(8, 16), _fifth_bits(4)), _half(0), _half(2)),
    "Q8_0": Meaning(-128, lambda blocks: blocks[..., 2:] ^ 128, _half(0)),
    "Q4_K": Meaning(0, _nibbles(16, 32), _scales_k, _offsets_k),
    "Q5_K": Meaning(0, _five(_nibbles(48, 32), _fifth_bits_k), _scales_k, _offsets_k),
    "Q6_K": Meaning(-32, _six_k, _scales_six_k),
}


def split_blocks(data: torch.Tensor, kind: str) -> torch.Tensor:
    """Rows of bytes uint8 [N, row bytes] -> [N, blocks, bytes]."""
    return data.unflatten(-1, (-1, TYPES[kind].size))


def read_codes(data: torch.Tensor, kind: str, form: Form) -> torch.Tensor:
    """Rows of bytes -> codes in a form, as ``CodedLinear`` holds them: uint8 [N, ceil(K * bits / 8)]."""
    meaning, blocks = MEANINGS[kind], split_blocks(data, kind)
    if form.bits == 4:
        least = 0 if form.table or form.offsets else 8 + meaning.least
        return to_nibbles(meaning.codes(blocks).flatten(-2) + least)
    return (meaning.whole(blocks) + 128).to(torch.uint8).flatten(-2)


def read_scales(data: torch.Tensor, kind: str, form: Form) -> torch.Tensor:
    """Rows of bytes -> scales float32 [N, groups of the form]."""
    return _spread(MEANINGS[kind].scales(split_blocks(data, kind)), kind, form)


def read_offsets(data: torch.Tensor, kind: str, form: Form) -> torch.Tensor:
    """Rows of bytes -> offsets float32 [N, groups of the form]; zero for a type without offsets."""
    read = MEANINGS[kind].offsets
    blocks = split_blocks(data, kind)
    return torch.zeros_like(read_scales(data, kind, form)) if read is None else _spread(read(blocks), kind, form)


def _spread(numbers: torch.Tensor, kind: str, form: Form) -> torch.Tensor:
    """One value for each of the type's groups -> one for each of the form's, which are no larger."""
    own = TYPES[kind].form
    return numbers.flatten(-2) if own is None else numbers.flatten(-2).repeat_interleave(own.group // form.group, -1)


def decode(data: torch.Tensor, kind: str) -> torch.Tensor:
    """Rows of bytes uint8 [N, row bytes] -> numbers [N, K]: float32, or the type's own dtype for plain numbers."""
    if kind in PLAIN:
        return data.view(PLAIN[kind])
    meaning, blocks = MEANINGS[kind], split_blocks(data, kind)
    scales = meaning.scales(blocks)
    values = meaning.whole(blocks).float().unflatten(-1, (scales.shape[-1], -1)) * scales[..., None]
    if meaning.offsets is not None:
        values += meaning.offsets(blocks)[..., None]
    return values.flatten(1)
