"""Normalisation over the hidden dimension."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_runtime.ops import Bindable, dtype_name
from lsv_runtime.weights.place import Weights


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


class LayerNorm(Bindable):
    """``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`` over the last axis, in float32 (Ba et al. 2016).

    Without ``affine`` it has neither weight nor bias.
    """

    op: ClassVar[str] = "layer_norm"
    row_invariant: ClassVar[bool] = True

    def __init__(self, w: Weights, size: int, eps: float, *, bias: bool = True, affine: bool = True) -> None:
        super().__init__()
        self.size, self.eps, self.dtype = size, eps, w.dtype
        self.weight: nn.Parameter | None = w.take("weight", (size,)) if affine else None
        self.bias: nn.Parameter | None = w.take("bias", (size,)) if affine and bias else None

    def spec(self) -> OpSpec:
        flags = frozenset(name for name in ("weight", "bias") if getattr(self, name) is not None)
        return OpSpec(self.op, dtype_name(self.dtype), shape={"size": self.size}, flags=flags)

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (self.size,), self.weight, self.bias, self.eps)


class LayerNorm1P(LayerNorm):
    """One whose weight is stored less 1, as Nemotron's are."""

    def filled(self) -> None:
        assert self.weight is not None
        self.weight.data.add_(1.0)


class HeadNorm(nn.Module):
    """Layer normalisation of every head with a weight of its own, without a bias: x [T, heads, dim] -> the same."""

    def __init__(self, weight: nn.Parameter, eps: float, own: tuple[int, int]) -> None:
        """``weight`` [all heads, dim], of which this rank has those from first to last."""
        super().__init__()
        self.weight, self.eps, self.own = weight, eps, slice(*own)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = functional.layer_norm(x.float(), x.shape[-1:], eps=self.eps)
        return (normed * self.weight[self.own].float()).to(x.dtype)
