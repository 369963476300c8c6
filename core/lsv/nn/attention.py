"""Self-attention over the paged cache. This module alone knows how heads map to ranks."""

from __future__ import annotations

from typing import ClassVar

import torch

from lsv.attention import AttentionLayer
from lsv.nn.config import DecoderConfig
from lsv.nn.linear import Column, Row
from lsv.nn.norm import RMSNorm
from lsv.nn.rope import Rope
from lsv.nn.step import Step
from lsv.nn.weights import Part, Weights
from lsv.offers import OpSpec
from lsv.ops import Bindable, dtype_name
from lsv.quantizer import joint_format


class Attention(Bindable):
    """q, k and v from one fused projection, rotated, attended, projected back: x [T, hidden] -> [T, hidden].

    Query heads are cut over the ranks; so are KV heads, or each is held by several ranks where there are
    fewer of them than ranks. ``qk_norm`` normalises every head of q and k before the rotation. ``layer`` gets
    its place in the KV cache from ``lsv.nn.build`` once the groups of all layers are known.
    """

    op: ClassVar[str] = "attention"

    def __init__(
        self,
        w: Weights,
        c: DecoderConfig,
        layer: int,
        rope: Rope,
        *,
        qk_norm: bool = False,
        qkv_bias: bool = False,
        out_bias: bool = False,
    ) -> None:
        super().__init__()
        first, last = w.shard.cut(c.heads, "attention heads")
        self.heads = last - first
        kv_first, kv_last = w.shard.cut_or_copy(c.kv_heads, "KV heads")
        self.kv_heads = kv_last - kv_first
        self.head_dim = dim = c.head_dim
        keys = [Part(name, c.kv_heads * dim, kv_first * dim, kv_last * dim) for name in ("k_proj", "v_proj")]
        queries = Part("q_proj", c.heads * dim, first * dim, last * dim)
        self.qkv = Column(w, [queries, *keys], c.hidden_size, bias=qkv_bias)
        self.out = Row(w, "o_proj", c.heads * dim, c.hidden_size, reads=(first * dim, last * dim), bias=out_bias)
        self.q_norm = RMSNorm(w / "q_norm", dim, c.norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(w / "k_norm", dim, c.norm_eps) if qk_norm else None
        self.rope = rope
        self.layer = AttentionLayer(layer, self.heads, self.kv_heads, dim, dim**-0.5, window=c.windows[layer])

    def spec(self) -> OpSpec:
        layer, linear = self.layer, self.qkv.linear
        shape = {
            "hidden": linear.layer.inputs,
            "heads": layer.heads,
            "kv_heads": layer.kv_heads,
            "head_dim": layer.head_dim,
        }
        flags = {
            name
            for name, on in (
                ("qk_norm", self.q_norm is not None),
                ("qkv_bias", linear.layer.bias),
                ("window", layer.window is not None),
                ("reduce", self.out.communicator is not None),
            )
            if on
        }
        format = joint_format(linear.format, self.out.linear.format)
        # another op to kernels, which know positions along one axis
        op = self.op if self.rope.axes == 1 else f"{self.op}.{self.rope.op}"
        return OpSpec(op, dtype_name(linear.layer.dtype), format, shape, frozenset(flags))

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        turning = self.heads + self.kv_heads
        qkv = self.qkv(x).view(-1, turning + self.kv_heads, self.head_dim)
        qk, v = qkv[:, :turning], qkv[:, turning:]
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, : self.heads]), self.k_norm(qk[:, self.heads :])), dim=1)
        qk = self.rope(qk, step.positions[0] if self.rope.axes == 1 else step.positions)
        layer = self.layer
        attended = step.backend.attend(
            qk[:, : self.heads], qk[:, self.heads :], v, layer, step.cache, step.attention[layer.group]
        )
        return self.out(attended.flatten(1))  # type: ignore[no-any-return]
