"""The recurrent layer of Kimi Linear and Ling 3: a delta rule with a decay for every feature of a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from lsv_models.recurrent.delta.mixer import NormedGate
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.recurrent.channel_delta import ChannelDelta
from lsv_runtime.nn.recurrent.conv import CausalConv
from lsv_runtime.nn.recurrent.states import StateCache
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSizes:
    """The numbers of a recurrent layer."""

    heads: int
    dim: int
    conv: int
    """Tokens that the convolution sees."""
    lowest: float | None = None
    """The bound of logarithms of decays, where they have one."""
    a_shape: Sequence[int] | None = None
    """The shape of what makes them, where that is not one number a head."""
    narrow: bool = False
    """Whether decays and gates come from vectors of a head's size."""

    @property
    def inner(self) -> int:
        return self.heads * self.dim


class ChannelMixer(nn.Module):
    """x [T, hidden] -> [T, hidden]; ``index`` is its number among the layers that keep something."""

    def __init__(self, w: Weights, sizes: ChannelSizes, c: DecoderConfig, index: int) -> None:
        super().__init__()
        self.sizes, hidden = sizes, c.hidden_size
        self.qkv = Column.even(w, ("q_proj", "k_proj", "v_proj"), hidden, sizes.inner)
        parts = dict.fromkeys(("q_conv1d", "k_conv1d", "v_conv1d"), sizes.inner)
        self.conv = CausalConv(w, 3 * sizes.inner, sizes.conv, activation=c.activation, bias=False, parts=parts)
        self.decay, self.gate = (_wide(w, name, hidden, sizes) for name in "fg")
        self.strength = Column.even(w, ("b_proj",), hidden, sizes.heads)
        self.scan = ChannelDelta(w, sizes.heads, sizes.dim, lowest=sizes.lowest, a_shape=sizes.a_shape)
        self.cache = StateCache(w, index, (self.conv.part, self.scan.part))
        self.norm = NormedGate(w / "o_norm", sizes.dim, c.norm_eps, torch.sigmoid)
        self.out = Row(w, "o_proj", sizes.inner, hidden, reads=(0, sizes.inner))

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        heads, states = (self.sizes.heads, self.sizes.dim), self.cache.of(step)
        q, k, v = self.conv(self.qkv(x), states).chunk(3, dim=-1)
        y = self.scan(q, k, v, self.decay(x), self.strength(x), states)
        y = self.norm(y.unflatten(-1, heads), self.gate(x).unflatten(-1, heads))
        return self.out(y.flatten(1))  # type: ignore[no-any-return]


def _wide(w: Weights, name: str, hidden: int, sizes: ChannelSizes) -> nn.Module:
    """A projection to the features of all heads."""
    if not sizes.narrow:
        return Column.even(w, (f"{name}_proj",), hidden, sizes.inner)
    return nn.Sequential(
        Column.even(w, (f"{name}_a_proj",), hidden, sizes.dim),
        Column.even(w, (f"{name}_b_proj",), sizes.dim, sizes.inner),
    )
