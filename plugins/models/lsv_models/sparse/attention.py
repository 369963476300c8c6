"""Attention as families with experts vary it: sinks and clipped projections."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from lsv_runtime.attention import AttentionLayer
from lsv_runtime.nn.attention import Attention, Heads, Sizes
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights


class SinkAttention(Attention):
    """Each head has one more logit, which takes part in the softmax and carries no value (gpt-oss)."""

    op = "attention.sinks"

    def __init__(self, w: Weights, c: Sizes, layer: int, rope: Rope | None, **given: Any) -> None:
        super().__init__(w, c, layer, rope, **given)
        first, last = Heads(w, c).queries
        self.sinks = w.take("sinks", (c.heads,), (0, first, last))
        self.layer = self._layer  # once more: now there are sinks

    @property
    def layer(self) -> AttentionLayer:  # type: ignore[override]
        return self._layer

    @layer.setter
    def layer(self, layer: AttentionLayer) -> None:
        """With the sinks as they are now: on meta when declared, and the values once they are filled."""
        self._layer = dataclasses.replace(layer, sinks=self._parameters.get("sinks"))


class Clipped(nn.Module):
    """A linear layer whose outputs are kept within ``limit`` of 0."""

    def __init__(self, inner: Column, limit: float) -> None:
        super().__init__()
        self.inner, self.linear, self.limit = inner, inner.linear, limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).clamp(min=-self.limit, max=self.limit)  # type: ignore[no-any-return]


class ClippedAttention(Attention):
    """One whose q, k and v may be clipped, which ``clip`` asks for (DBRX)."""

    op = "attention.clipped"

    def clip(self, limit: float) -> None:
        self.qkv: Any = Clipped(self.qkv, limit)
