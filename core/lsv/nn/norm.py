"""Normalisation over the hidden dimension."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv.offers import OpSpec
from lsv.ops import Bindable, dtype_name
from lsv.weights.place import Weights


class RMSNorm(Bindable):
    """``x / sqrt(mean(x²) + eps) * weight`` over the last axis, in float32 (Zhang & Sennrich 2019)."""

    op: ClassVar[str] = "rms_norm"
    row_invariant: ClassVar[bool] = True

    def __init__(self, w: Weights, size: int, eps: float) -> None:
        super().__init__()
        self.weight: nn.Parameter = w.take("weight", (size,))
        self.eps = eps

    def spec(self) -> OpSpec:
        return OpSpec(self.op, dtype_name(self.weight.dtype), shape={"size": self.weight.shape[0]})

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis, with a bias (Ba et al. 2016)."""

    def __init__(self, w: Weights, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias = w.take("weight", (size,)), w.take("bias", (size,))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
