"""Attention over the paged cache. Only this module knows how heads map to ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch
from torch import nn

from lsv.attention import AttentionLayer
from lsv.nn.linear import Column, Row
from lsv.nn.norm import RMSNorm
from lsv.nn.rope import Rope
from lsv.nn.step import Step
from lsv.offers import OpSpec
from lsv.ops import Bindable, dtype_name
from lsv.weights.place import Part, Weights
from lsv.weights.quantizer import joint_format


class Sizes(Protocol):
    """The sizes that attention needs; ``lsv.nn.config.DecoderConfig`` has them all."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def windows(self) -> Sequence[int | None]: ...


class Heads:
    """This rank's shard of the heads: ``queries`` and ``kv`` as [first, last)."""

    def __init__(self, w: Weights, c: Sizes) -> None:
        self.queries = w.shard.split(c.heads, "attention heads")
        self.kv = w.shard.split_or_replicate(c.kv_heads, "KV heads")
        self._c = c

    def part(self, name: str, *, biased: bool = True) -> Part:
        """This rank's shard of ``q_proj``, ``k_proj`` or ``v_proj``."""
        total, (first, last) = (self._c.heads, self.queries) if name == "q_proj" else (self._c.kv_heads, self.kv)
        dim = self._c.head_dim
        return Part(name, total * dim, first * dim, last * dim, biased)

    def out(self, w: Weights, *, bias: bool) -> Row:
        """``o_proj`` over the outputs of these heads."""
        c, (first, last) = self._c, self.queries
        reads = (first * c.head_dim, last * c.head_dim)
        return Row(w, "o_proj", c.heads * c.head_dim, c.hidden_size, reads=reads, bias=bias)

    def layer(self, index: int, *, window: int | None = None, source: int | None = None) -> AttentionLayer:
        """What the backend is told of these heads in layer ``index``."""
        heads, kv_heads = (last - first for first, last in (self.queries, self.kv))
        dim, causal = self._c.head_dim, source is None
        return AttentionLayer(index, heads, kv_heads, dim, dim**-0.5, causal, window, source=source)


class Attention(Bindable):
    """q, k and v from one fused projection, rotated, attended, projected back: x [T, hidden] -> [T, hidden].

    Heads are split over the ranks; with fewer KV heads than ranks each KV head is replicated on several. ``rope`` is
    None for a model that has its positions in the embedding. ``qk_norm`` normalises every head of q and k before the
    rotation. The ``unbiased`` projections have no bias even if the others do. ``layer`` gets its place in the KV cache
    once the groups of all layers are known.
    """

    op: ClassVar[str] = "attention"

    def __init__(
        self,
        w: Weights,
        c: Sizes,
        layer: int,
        rope: Rope | None,
        *,
        qk_norm: bool = False,
        qkv_bias: bool = False,
        out_bias: bool = False,
        unbiased: Sequence[str] = (),
    ) -> None:
        super().__init__()
        heads = Heads(w, c)
        parts = [heads.part(name, biased=name not in unbiased) for name in ("q_proj", "k_proj", "v_proj")]
        self.qkv = Column(w, parts, c.hidden_size, bias=qkv_bias)
        self.out = heads.out(w, bias=out_bias)
        self.q_norm = RMSNorm(w / "q_norm", c.head_dim, c.norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(w / "k_norm", c.head_dim, c.norm_eps) if qk_norm else None
        self.rope = rope
        self.layer = heads.layer(layer, window=c.windows[layer])
        self.heads, self.kv_heads, self.head_dim = self.layer.heads, self.layer.kv_heads, c.head_dim

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
        return OpSpec(self._op(), dtype_name(linear.layer.dtype), format, shape, frozenset(flags))

    def _op(self) -> str:
        """Another op for what kernels do not know: positions along several axes, or in the embedding."""
        if self.rope is None:
            return f"{self.op}.no_rope"
        return self.op if self.rope.axes == 1 else f"{self.op}.{self.rope.op}"

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        rotated = self.heads + self.kv_heads
        qkv = self.qkv(x).view(-1, rotated + self.kv_heads, self.head_dim)
        qk, v = qkv[:, :rotated], qkv[:, rotated:]
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, : self.heads]), self.k_norm(qk[:, self.heads :])), dim=1)
        if self.rope is not None:
            qk = self.rope(qk, step.positions[0] if self.rope.axes == 1 else step.positions)
        layer = self.layer
        attended = step.backend.attend(
            qk[:, : self.heads], qk[:, self.heads :], v, layer, step.cache, step.attention[layer.group]
        )
        return self.out(attended.flatten(1))  # type: ignore[no-any-return]


class CrossAttention(nn.Module):
    """q from the tokens, k and v from the media item that their row attends to: x [T, hidden] -> [T, hidden].

    Heads are split over the ranks as in ``Attention``. An item has at most ``source`` embeddings.
    """

    def __init__(
        self, w: Weights, c: Sizes, layer: int, source: int, *, bias: bool = False, unbiased: Sequence[str] = ()
    ) -> None:
        super().__init__()
        heads = Heads(w, c)
        query, *keys = (heads.part(name, biased=name not in unbiased) for name in ("q_proj", "k_proj", "v_proj"))
        self.q = Column(w, [query], c.hidden_size, bias=bias)
        self.kv = Column(w, keys, c.hidden_size, bias=bias)
        self.out = heads.out(w, bias=bias)
        self.layer = heads.layer(layer, source=source)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        layer = self.layer
        q = self.q(x).unflatten(-1, (layer.heads, -1))
        # there is no cache while memory is being measured: any keys will do
        k, v = self._keys_and_values(x) if step.cache is None else (None, None)
        attended = step.backend.attend(q, k, v, layer, step.cache, step.attention[layer.group])
        return self.out(attended.flatten(1))  # type: ignore[no-any-return]

    def write(self, item: torch.Tensor, step: Step) -> None:
        """Put k and v of an item's embeddings [count, hidden], which are the tokens of ``step``, into the cache."""
        layer = self.layer
        item = item.to(self.kv.linear.layer.dtype)
        step.backend.write(*self._keys_and_values(item), layer, step.cache, step.attention[layer.group])

    def _keys_and_values(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = self.kv(x).unflatten(-1, (2, self.layer.kv_heads, -1)).unbind(-3)
        return k, v
