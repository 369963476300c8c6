"""What a block's bytes mean, type by type (ggml's ``ggml-common.h`` and ``ggml-quants.c``).

A weight is ``(code + least) * scale + offset``, with a scale and an offset for each group of the type's form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from lsv.weights.codebook import to_nibbles
from lsv_quant.gguf.types import TYPES, Form

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Read = Callable[[torch.Tensor], torch.Tensor]


class Meaning(NamedTuple):
    """Of blocks uint8 [..., bytes]: codes uint8 [..., weights], scales and offsets float32 [..., groups]."""

    least: int
    codes: Read
    scales: Read
    offsets: Read | None = None


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
    meaning = MEANINGS[kind]
    codes = meaning.codes(split_blocks(data, kind)).flatten(-2)
    return to_nibbles(codes) if form.bits == 4 else codes + (128 + meaning.least)


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
    values = (meaning.codes(blocks).float() + meaning.least).unflatten(-1, (scales.shape[-1], -1)) * scales[..., None]
    if meaning.offsets is not None:
        values += meaning.offsets(blocks)[..., None]
    return values.flatten(1)
