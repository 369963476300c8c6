"""Weights that stay in float32 whatever the model computes in, as states do."""

from __future__ import annotations

import torch
from torch import nn

from lsv_runtime.weights.place import Piece, Weights


def take_float(w: Weights, name: str, *shape: int) -> nn.Parameter:
    """A tensor of this shape in float32; the checkpoint may hold it in any floating point."""
    region = tuple(slice(0, size) for size in shape)
    return w.declare(shape, (Piece((w / name).name, shape, region, region),), dtype=torch.float32)
