"""Positions of text encoder-decoders, learned or computed: positions int64 [T] -> [T, size]."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from lsv_runtime.weights.place import Piece, Weights


class Sinusoids(nn.Module):
    """Sines in the first half of the features, cosines in the second one (Vaswani et al. 2017).

    They are computed, unless the checkpoint has them. The wave lengths of ``size / 2`` features end short of 10,000, as
    XLM has them, or, ``whole``, there, as fairseq has them. Position 0 is at row ``first``; the rows before it, which
    padding has, are zero.
    """

    def __init__(self, w: Weights, count: int, size: int, *, first: int = 0, whole: bool = False) -> None:
        super().__init__()
        half = size // 2
        steps = torch.arange(half, dtype=torch.float64 if not whole else torch.float32)
        rates = torch.exp(steps * -(math.log(10000) / (half - 1))) if whole else 10000.0 ** (-2 * steps / size)
        angles = torch.arange(first + count, dtype=rates.dtype)[:, None] * rates[None]
        table = torch.cat((angles.sin(), angles.cos()), dim=1).float()
        table[:first] = 0.0
        self.table, self.first = table.to(w.device, w.dtype), first
        region = (slice(0, first + count), slice(0, size))
        piece = Piece((w / "weight").name, (first + count, size), region, region)
        self.weight = w.declare((first + count, size), (piece,), optional=True)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return functional.embedding(positions + self.first, self.table if self.weight.is_meta else self.weight)
