"""The recurrent layer of Qwen3-Next, Qwen3.5 and OLMo Hybrid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.recurrent.conv import CausalConv
from lsv_runtime.nn.recurrent.delta import GatedDelta
from lsv_runtime.nn.recurrent.states import StateCache
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

Activation = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSizes:
    """The numbers of a recurrent layer."""

    heads: int
    """Of values, with ``dim`` features each."""
    dim: int
    key_heads: int
    """Of queries and keys, with ``key_dim`` features each."""
    key_dim: int
    conv: int
    """Tokens that the convolution sees."""
    most: float = 1.0
    """The bound of strengths."""
    norm_eps: float | None = None
    """Of the gated norm; None for the model's."""

    @classmethod
    def read(
        cls, keys: Keys, *, heads: int = 32, key_heads: int = 16, dim: int = 128, key_dim: int = 128
    ) -> DeltaSizes:
        """Qwen's keys; the arguments are the family's defaults."""
        return cls(
            heads=keys.count("linear_num_value_heads", heads),
            dim=keys.count("linear_value_head_dim", dim),
            key_heads=keys.count("linear_num_key_heads", key_heads),
            key_dim=keys.count("linear_key_head_dim", key_dim),
            conv=keys.count("linear_conv_kernel_dim", 4),
        )

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.heads * self.dim


class NormedGate(nn.Module):
    """``norm(x) * weight * activation(gate)`` of each head, in the dtype of ``gate``: x and gate [..., size]."""

    def __init__(self, w: Weights, size: int, eps: float, activation: Activation = functional.silu) -> None:
        super().__init__()
        self.weight = w.take("weight", (size,))
        self.eps, self.activate = eps, activation

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        normed = functional.rms_norm(x.float(), self.weight.shape, None, self.eps).to(gate.dtype)
        return (self.weight * normed * self.activate(gate.float())).to(gate.dtype)


class DeltaMixer(nn.Module):
    """x [T, hidden] -> [T, hidden]. Projections are ordered by key heads, each with its value heads."""

    def __init__(self, w: Weights, sizes: DeltaSizes, c: DecoderConfig, index: int) -> None:
        super().__init__()
        self.sizes = sizes
        self._declare(w, sizes, c.hidden_size)
        self.conv = self._make_conv(w, sizes, c.activation)
        self.scan = GatedDelta(w, sizes.heads, sizes.dim, sizes.key_heads, sizes.key_dim, most=sizes.most)
        self.cache = StateCache(w, index, (self.conv.part, self.scan.part))
        self.norm = NormedGate(w / "norm", sizes.dim, sizes.norm_eps or c.norm_eps)
        self.out = Row(w, "out_proj", sizes.values, c.hidden_size, reads=(0, sizes.values))

    def _declare(self, w: Weights, sizes: DeltaSizes, hidden: int) -> None:
        self.project = Column.even(w, ("in_proj_qkvz",), hidden, 2 * (sizes.keys + sizes.values))
        self.gates = Column.even(w, ("in_proj_ba",), hidden, 2 * sizes.heads)

    def _make_conv(self, w: Weights, sizes: DeltaSizes, activation: str) -> CausalConv:
        return CausalConv(w / "conv1d", 2 * sizes.keys + sizes.values, sizes.conv, activation=activation, bias=False)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values in a row; gates, strengths and decays."""
        c = self.sizes
        wide = c.heads // c.key_heads * c.dim
        parts = self.project(x).unflatten(-1, (c.key_heads, -1)).split((c.key_dim, c.key_dim, wide, wide), dim=-1)
        *mixed, gate = (part.flatten(1) for part in parts)
        strength, decay = (part.flatten(1) for part in self.gates(x).unflatten(-1, (c.key_heads, 2, -1)).unbind(2))
        return torch.cat(mixed, dim=-1), gate, strength, decay

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        c, states = self.sizes, self.cache.of(step)
        mixed, gate, strength, decay = self._project(x)
        q, k, v = self.conv(mixed, states).split((c.keys, c.keys, c.values), dim=-1)
        y = self.scan(q, k, v, decay, strength, states)
        y = self.norm(y.unflatten(-1, (c.heads, c.dim)), gate.unflatten(-1, (c.heads, c.dim)))
        return self.out(y.flatten(1))  # type: ignore[no-any-return]


class PlainDeltaMixer(DeltaMixer):
    """The same, with projections of their own, ordered by heads."""

    def _declare(self, w: Weights, sizes: DeltaSizes, hidden: int) -> None:
        self.qkv = Column.even(w, ("in_proj_qkv",), hidden, 2 * sizes.keys + sizes.values)
        self.gate = Column.even(w, ("in_proj_z",), hidden, sizes.values)
        self.strength = Column.even(w, ("in_proj_b",), hidden, sizes.heads)
        self.decay = Column.even(w, ("in_proj_a",), hidden, sizes.heads)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.qkv(x), self.gate(x), self.strength(x), self.decay(x)
