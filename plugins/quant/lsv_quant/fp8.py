"""``fp8``: weights in e4m3, rounded from a plain checkpoint with a scale for each output (``fp8_tensor``: one for all).

The output head is not quantised. Activations are rounded to e4m3 by token where the device multiplies it (W8A8), and
stay as they are elsewhere (W8A16). Under the same name checkpoints in fp8 are read, see
``lsv_quant.checkpoints.fp8_checkpoint``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from lsv_quant.checkpoints import fp8_checkpoint
from lsv_quant.checkpoints.forms import PlainHead
from lsv_quant.online.online import Online
from lsv_quant.online.online_coded import OnlineCoded
from lsv_quant.rounding import NOTHING, row_chunks
from lsv_quant.tables import E4M3
from lsv_runtime.weights.codebook import ROUNDED, Codebook
from lsv_runtime.weights.quantizer import Quantizer

LARGEST = 448.0


def to_e4m3(x: torch.Tensor, largest: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """x float32 [..., G] -> codes uint8 [..., G] and scales float32 [...]: the largest weight becomes 448.

    ``largest`` is that of all weights, if they share a scale. Ties round to even.
    """
    peaks = x.abs().amax(dim=-1) if largest is None else largest.expand(x.shape[:-1])
    scales = torch.where(peaks < NOTHING, 1.0, peaks / LARGEST)
    return (x / scales[..., None]).to(torch.float8_e4m3fn).view(torch.uint8), scales


class Fp8(OnlineCoded):
    """A scale for each output."""

    marks_of_all = frozenset((ROUNDED,))


class OneScale(Fp8):
    """All weights of a layer on its rank share a scale, which is still held for each output."""

    def filled(self) -> None:
        largest = self.plain.new_zeros(())
        for rows in row_chunks(self.plain):
            largest = torch.maximum(largest, self.plain[rows].abs().amax())
        self.round = partial(to_e4m3, largest=largest.float())
        super().filled()


def make(quantization_config: Mapping[str, Any]) -> Quantizer:
    if quantization_config:
        return fp8_checkpoint.make(quantization_config)
    return PlainHead(Online("fp8", partial(Fp8, codebook=Codebook(E4M3), round=to_e4m3)))


def make_tensor(quantization_config: Mapping[str, Any]) -> Quantizer:
    return PlainHead(Online("fp8_tensor", partial(OneScale, codebook=Codebook(E4M3), round=to_e4m3)))
