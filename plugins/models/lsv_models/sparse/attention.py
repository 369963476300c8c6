"""Attention as families with experts vary it: what is done to q and k, sinks, clipped projections, whole norms."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from lsv.attention import AttentionLayer
from lsv.nn.attention import Attention, Heads, Sizes
from lsv.nn.linear import Column
from lsv.nn.norm import RMSNorm
from lsv.nn.rope import Rope
from lsv.nn.step import Step
from lsv.weights.place import Weights


class TurnedAttention(Attention):
    """One whose subclasses say what is done to q and k before they meet."""

    op = "attention.turned"

    def turn(self, qk: torch.Tensor, step: Step) -> torch.Tensor:
        """The heads of q and k [T, heads + kv_heads, head_dim] -> the same."""
        raise NotImplementedError

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        turned, layer = self.heads + self.kv_heads, self.layer
        qkv = self.qkv(x).view(-1, turned + self.kv_heads, self.head_dim)
        qk, v = self.turn(qkv[:, :turned], step), qkv[:, turned:]
        attended = step.backend.attend(
            qk[:, : self.heads], qk[:, self.heads :], v, layer, step.cache, step.attention[layer.group]
        )
        return self.out(attended.flatten(1))  # type: ignore[no-any-return]


def apart(heads: torch.Tensor) -> torch.Tensor:
    """Features 2 i and 2 i + 1 brought to their places in two halves. Of q and k alike it changes no product."""
    return heads.unflatten(-1, (-1, 2)).mT.flatten(-2)


class PairedAttention(TurnedAttention):
    """Rotates neighbouring features as a pair (ERNIE 4.5)."""

    op = "attention.paired"

    def turn(self, qk: torch.Tensor, step: Step) -> torch.Tensor:
        assert self.rope is not None
        return self.rope(apart(qk), step.positions[0])  # type: ignore[no-any-return]


class LateNormAttention(TurnedAttention):
    """Normalises the heads of q and k after they are rotated (Hunyuan)."""

    op = "attention.late_norm"

    def __init__(self, w: Weights, c: Sizes, layer: int, rope: Rope | None, **given: Any) -> None:
        super().__init__(w, c, layer, rope, **{**given, "qk_norm": False})
        self.q_norm = RMSNorm(w / "query_layernorm", c.head_dim, c.norm_eps)
        self.k_norm = RMSNorm(w / "key_layernorm", c.head_dim, c.norm_eps)

    def turn(self, qk: torch.Tensor, step: Step) -> torch.Tensor:
        assert self.rope is not None
        qk = self.rope(qk, step.positions[0])
        return torch.cat((self.q_norm(qk[:, : self.heads]), self.k_norm(qk[:, self.heads :])), dim=1)


class WholeNorm(RMSNorm):
    """Over the features of all heads together, those of other ranks included: x [T, heads, dim] -> the same."""

    op = "rms_norm.whole"

    def __init__(self, w: Weights, heads: tuple[int, int], total: int, dim: int, eps: float) -> None:
        """``heads`` = [first, last) of ``total`` are this rank's; replicated ones are so on equally many ranks."""
        nn.Module.__init__(self)
        first, last = heads
        self.weight = w.take("weight", (total * dim,), (0, first * dim, last * dim))
        self.eps, self.communicator, self.ranks = eps, w.communicator, w.shard.size

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        features = x.flatten(1).float()
        mean = features.square().mean(dim=-1, keepdim=True)
        if self.communicator is not None:
            mean = self.communicator.all_reduce(mean) / self.ranks
        normed = (features * torch.rsqrt(mean + self.eps)).to(x.dtype)
        return (normed * self.weight).view(x.shape)


class WholeNormAttention(Attention):
    """Normalises q, and k, over all their heads together (OLMoE)."""

    op = "attention.whole_norm"

    def __init__(self, w: Weights, c: Sizes, layer: int, rope: Rope | None, **given: Any) -> None:
        super().__init__(w, c, layer, rope, **{**given, "qk_norm": False})
        heads = Heads(w, c)
        self.q_norm = WholeNorm(w / "q_norm", heads.queries, c.heads, c.head_dim, c.norm_eps)
        self.k_norm = WholeNorm(w / "k_norm", heads.kv, c.kv_heads, c.head_dim, c.norm_eps)


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
