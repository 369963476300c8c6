"""What several families vary: where a block has norms, what it multiplies, and how q and k are normalised."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_runtime.nn.attention import Attention, Heads, Sizes
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import dtype_name
from lsv_runtime.weights.place import Weights


class SandwichLayer(DecoderLayer):
    """Attention and MLP each have a norm before and one after: x [T, hidden] -> [T, hidden]."""

    norms = {
        "before_attn": "input_layernorm",
        "after_attn": "post_attention_layernorm",
        "before_mlp": "pre_feedforward_layernorm",
        "after_mlp": "post_feedforward_layernorm",
    }

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.after_attn(self.attn(self.before_attn(x), step))
        return x + self.after_mlp(self.mlp(self.before_mlp(x)))  # type: ignore[no-any-return]


class PostNormLayer(DecoderLayer):
    """What attention and MLP add is normalised, what they read is not: x [T, hidden] -> [T, hidden]."""

    norms = {"after_attn": "post_attention_layernorm", "after_mlp": "post_feedforward_layernorm"}

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.after_attn(self.attn(x, step))
        return x + self.after_mlp(self.mlp(x))  # type: ignore[no-any-return]


class ScaledLayer(DecoderLayer):
    """Llama's block, with what attention and MLP add multiplied: x [T, hidden] -> [T, hidden]."""

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), step) * self.multiplier
        return x + self.mlp(self.before_mlp(x)) * self.multiplier  # type: ignore[no-any-return]


class OffsetRMSNorm(RMSNorm):
    """RMSNorm by ``1 + weight``, in float32 throughout.

    One is added while weights are filled. The sum stays in float32: 16 bits would round away much of a small weight. A
    float32 model has thereby a common RMSNorm, and other ones an op of their own.
    """

    def __init__(self, w: Weights, size: int, eps: float) -> None:
        super().__init__(Weights(replace(w.declaration, dtype=torch.float32), w.name), size, eps)
        self.dtype = w.dtype

    def spec(self) -> OpSpec:
        op = self.op if self.dtype == torch.float32 else f"{self.op}.offset"
        return OpSpec(op, dtype_name(self.dtype), shape={"size": self.weight.shape[0]})

    def filled(self) -> None:
        self.weight.data.add_(1.0)

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).type_as(x)


class ShardedRMSNorm(RMSNorm):
    """RMSNorm over features of which each rank has a share; where ranks hold copies, all features have equally many."""

    def __init__(self, w: Weights, size: int, share: tuple[int, int], eps: float) -> None:
        nn.Module.__init__(self)
        self.weight = w.take("weight", (size,), (0, *share))
        self.eps, self.communicator, self.ranks = eps, w.communicator, w.shard.size

    def spec(self) -> OpSpec:
        op = self.op if self.communicator is None else f"{self.op}.sharded"
        return OpSpec(op, dtype_name(self.weight.dtype), shape={"size": self.weight.shape[0]})

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        if self.communicator is None:
            return super().reference(x)
        wide = x.float()
        squares = self.communicator.all_reduce(wide.square().sum(-1, keepdim=True))
        scale = torch.rsqrt(squares / (self.ranks * x.shape[-1]) + self.eps)
        return (wide * scale * self.weight.float()).type_as(x)


class WideNormAttention(Attention):
    """q and k are each normalised over all heads together (OLMo 2)."""

    variation: ClassVar[str] = "wide_norm"

    def make_norms(self, w: Weights, c: Sizes, heads: Heads, norm: type[RMSNorm]) -> tuple[RMSNorm, RMSNorm]:
        counts = ((c.heads, heads.queries), (c.kv_heads, heads.kv))
        q, k = (
            ShardedRMSNorm(w / name, count * c.head_dim, (first * c.head_dim, last * c.head_dim), c.norm_eps)
            for name, (count, (first, last)) in zip(self.qk_names, counts, strict=True)
        )
        return q, k

    def normalise(self, qk: torch.Tensor) -> torch.Tensor:
        if self.q_norm is None or self.k_norm is None:
            return qk
        q, k = qk.flatten(1).split((self.heads * self.head_dim, self.kv_heads * self.head_dim), dim=1)
        return torch.cat((self.q_norm(q), self.k_norm(k)), dim=1).view_as(qk)


class LateNormAttention(Attention):
    """Heads of q and k are normalised after they are rotated (Hunyuan)."""

    variation: ClassVar[str] = "late_norm"
    qk_names: ClassVar[tuple[str, str]] = ("query_layernorm", "key_layernorm")

    def turn(self, qk: torch.Tensor, step: Step) -> torch.Tensor:
        return self.normalise(self.rotate(qk, step))
