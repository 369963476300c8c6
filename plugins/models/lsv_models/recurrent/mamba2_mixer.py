"""The recurrent layer of Mamba 2 and of the hybrids built with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.recurrent.conv import CausalConv
from lsv_runtime.nn.recurrent.ssd import StateSpace
from lsv_runtime.nn.recurrent.states import StateCache
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Sizes:
    """The numbers of a recurrent layer."""

    hidden: int
    heads: int
    head_dim: int
    state: int
    groups: int
    conv: int
    """Tokens that the convolution sees."""
    limits: tuple[float, float]
    """Within which time steps are held."""
    activation: str
    bias: bool
    conv_bias: bool
    eps: float
    norm_groups: int = 1
    """Parts of the gated output that are normalised by themselves."""

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim


class GatedNorm(nn.Module):
    """``norm(x * silu(gate)) * weight`` in float32, in the dtype of ``gate``; ``groups`` are normalised apart."""

    def __init__(self, w: Weights, size: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight = w.take("weight", (size,))
        self.groups, self.eps = groups, eps

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        x = (x * functional.silu(gate.float())).unflatten(-1, (self.groups, -1))
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * x.flatten(-2).to(gate.dtype)


class Mamba2Mixer(nn.Module):
    """x [T, hidden] -> [T, hidden]; ``index`` is its number among the layers that keep something.

    Its output is gated, and normalised unless ``normed`` is False.
    """

    def __init__(
        self, w: Weights, c: Mamba2Sizes, index: int, *, normed: bool = True, out_bias: bool | None = None
    ) -> None:
        super().__init__()
        shared = c.groups * c.state
        self.sizes = (c.inner, c.inner + 2 * shared, c.heads)
        self.inner = (c.inner, shared, shared)
        self.project = Column.even(w, ("in_proj",), c.hidden, sum(self.sizes), bias=c.bias)
        self.conv = CausalConv(w / "conv1d", self.sizes[1], c.conv, activation=c.activation, bias=c.conv_bias)
        self.scan = StateSpace(w, c.heads, c.head_dim, c.state, c.groups, limits=c.limits)
        self.cache = StateCache(w, index, (self.conv.part, self.scan.part))
        self.norm = GatedNorm(w / "norm", c.inner, c.norm_groups, c.eps) if normed else None
        bias = c.bias if out_bias is None else out_bias
        self.out = Row(w, "out_proj", c.inner, c.hidden, reads=(0, c.inner), bias=bias)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        states = self.cache.of(step)
        gate, mixed, dt = self.project(x).split(self.sizes, dim=-1)
        x, b, c = self.conv(mixed, states).split(self.inner, dim=-1)
        y = self.scan(x, dt, b, c, states)
        y = (y * functional.silu(gate.float())).to(gate.dtype) if self.norm is None else self.norm(y, gate)
        return self.out(y)  # type: ignore[no-any-return]
