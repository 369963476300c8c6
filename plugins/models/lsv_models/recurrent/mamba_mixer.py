"""The recurrent layer of Mamba, of Falcon Mamba and of Jamba."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.recurrent.conv import CausalConv
from lsv_runtime.nn.recurrent.selective import SelectiveScan
from lsv_runtime.nn.recurrent.states import StateCache
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSizes:
    """The numbers of a recurrent layer."""

    hidden: int
    inner: int
    state: int
    rank: int
    """Of the projection that makes time steps."""
    conv: int
    """Tokens that the convolution sees."""
    activation: str
    bias: bool
    conv_bias: bool
    eps: float
    norms: Literal["none", "plain", "weighted"] = "none"
    """Whether time steps, b and c are normalised, and whether these norms have weights."""


class PlainNorm(nn.Module):
    """A norm without weights: x [..., size] -> [..., size]."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.shape, self.eps = (size,), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, self.shape, None, self.eps)


class MambaMixer(nn.Module):
    """x [T, hidden] -> [T, hidden]; ``index`` is its number among the layers that keep something."""

    def __init__(self, w: Weights, c: MambaSizes, index: int) -> None:
        super().__init__()
        self.parts = (c.rank, c.state, c.state)
        self.project = Column.even(w, ("in_proj",), c.hidden, 2 * c.inner, bias=c.bias)
        self.conv = CausalConv(w / "conv1d", c.inner, c.conv, activation=c.activation, bias=c.conv_bias)
        self.select = Column.even(w, ("x_proj",), c.inner, sum(self.parts))
        self.norms = self._norms(w, c)
        self.widen = Column.even(w, ("dt_proj",), c.rank, c.inner)
        self.scan = SelectiveScan(w, c.inner, c.state)
        self.cache = StateCache(w, index, (self.conv.part, self.scan.part))
        self.out = Row(w, "out_proj", c.inner, c.hidden, reads=(0, c.inner), bias=c.bias)

    def _norms(self, w: Weights, c: MambaSizes) -> nn.ModuleList | None:
        if c.norms == "none":
            return None
        if c.norms == "plain":
            return nn.ModuleList(PlainNorm(size, c.eps) for size in self.parts)
        names = ("dt_layernorm", "b_layernorm", "c_layernorm")
        return nn.ModuleList(RMSNorm(w / name, size, c.eps) for name, size in zip(names, self.parts, strict=True))

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        states = self.cache.of(step)
        x, gate = self.project(x).chunk(2, dim=-1)
        x = self.conv(x, states)
        selected = self.select(x).split(self.parts, dim=-1)
        if self.norms is not None:
            selected = [norm(part.contiguous()) for norm, part in zip(self.norms, selected, strict=True)]
        dt, b, c = selected
        y = self.scan(x, self.widen(dt.contiguous()), b, c, states)
        return self.out((y * functional.silu(gate.float())).to(x.dtype))  # type: ignore[no-any-return]
