"""Attention over the paged cache. Only this module knows how heads map to ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from lsv.offers import OpSpec
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import Bindable, dtype_name
from lsv_runtime.weights.place import Part, Weights
from lsv_runtime.weights.quantizer import joint_format


class Sizes(Protocol):
    """The sizes that attention needs; ``lsv_runtime.nn.config.DecoderConfig`` has them all."""

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

    def stacked(self, name: str) -> list[Part]:
        """Their shard of one tensor that holds all queries, then all keys, then all values."""
        sizes = (self._c.heads, self._c.kv_heads, self._c.kv_heads)
        begins = (0, sizes[0], sizes[0] + sizes[1])
        shares = zip(begins, (self.queries, self.kv, self.kv), strict=True)
        return [self._heads_of(name, begin + first, begin + last) for begin, (first, last) in shares]

    def grouped(self, name: str) -> list[Part]:
        """Their shard of one tensor that holds, KV head by KV head, its queries, its key and its value."""
        each = self._c.heads // self._c.kv_heads
        (first, last), kv = self.queries, range(*self.kv)
        own = [(max(first, group * each), min(last, (group + 1) * each), group) for group in kv]
        queries = [(begin + 2 * group, end + 2 * group) for begin, end, group in own]
        keys = [(group * (each + 2) + each, group * (each + 2) + each + 1) for group in kv]
        values = [(begin + 1, end + 1) for begin, end in keys]
        return [self._heads_of(name, *heads) for heads in (*queries, *keys, *values)]

    def _heads_of(self, name: str, first: int, last: int) -> Part:
        """Heads ``[first, last)`` of those of q, k and v in one tensor."""
        dim, count = self._c.head_dim, self._c.heads + 2 * self._c.kv_heads
        return Part(name, count * dim, first * dim, last * dim)

    def out(self, w: Weights, *, bias: bool, name: str = "o_proj") -> Row:
        """The projection back, over the outputs of these heads."""
        c, (first, last) = self._c, self.queries
        reads = (first * c.head_dim, last * c.head_dim)
        return Row(w, name, c.heads * c.head_dim, c.hidden_size, reads=reads, bias=bias)

    def layer(
        self,
        index: int,
        *,
        window: int | None = None,
        source: int | None = None,
        scale: float | None = None,
        cap: float | None = None,
    ) -> AttentionLayer:
        """What the backend is told of these heads in layer ``index``."""
        heads, kv_heads = (last - first for first, last in (self.queries, self.kv))
        dim, causal = self._c.head_dim, source is None
        scale = dim**-0.5 if scale is None else scale
        return AttentionLayer(index, heads, kv_heads, dim, scale, causal, window, cap, source=source)


Fused = Callable[[Heads], list[Part]]
"""Where a rank's heads of q, k and v are in the checkpoint."""
Attended = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""Queries, keys and values; without the latter two those of another layer are read."""


class Attention(Bindable):
    """q, k and v from one fused projection, rotated, attended, projected back: x [T, hidden] -> [T, hidden].

    Heads are split over the ranks; with fewer KV heads than ranks each KV head is replicated on several. ``rope`` is
    None for a model or layer without positions, or that has them in the embedding. ``qk_norm`` normalises every head of
    q and k before the rotation. The ``unbiased`` projections have no bias even if the others do. ``fused`` names the
    tensor that holds q, k and v, as ``Heads.stacked`` or ``Heads.grouped`` finds them there. ``scale`` and ``cap`` are
    those of ``AttentionLayer``. ``layer`` gets its place in the KV cache once the groups of all layers are known.
    ``heads`` says where a family stores projections that have other names.
    """

    op: ClassVar[str] = "attention"
    variation: ClassVar[str] = ""
    """What a subclass computes that kernels for attention do not; part of its op."""
    qk_names: ClassVar[tuple[str, str]] = ("q_norm", "k_norm")
    """The norms of q and k in the checkpoint."""

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
        norm: type[RMSNorm] = RMSNorm,
        fused: Fused | None = None,
        scale: float | None = None,
        cap: float | None = None,
        heads: Heads | None = None,
    ) -> None:
        super().__init__()
        heads = heads or Heads(w, c)
        parts = [heads.part(name, biased=name not in unbiased) for name in ("q_proj", "k_proj", "v_proj")]
        self.qkv = Column(w, fused(heads) if fused else parts, c.hidden_size, bias=qkv_bias)
        self.out = heads.out(w, bias=out_bias)
        norms = self.make_norms(w, c, heads, norm) if qk_norm else (None, None)
        self.q_norm: RMSNorm | None = norms[0]
        self.k_norm: RMSNorm | None = norms[1]
        self.rope = rope
        self.layer = heads.layer(layer, window=c.windows[layer], scale=scale, cap=cap)
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
        """Another op for what kernels do not know: other rotations or none, positions on several axes, other norms."""
        rope = "no_rope" if self.rope is None else "" if self.rope.op == Rope.op else self.rope.op
        norm = RMSNorm.op if self.q_norm is None else self.q_norm.spec().op
        norm = "" if norm == RMSNorm.op else norm
        return ".".join(part for part in (self.op, self.variation, rope, norm) if part)

    def make_norms(self, w: Weights, c: Sizes, heads: Heads, norm: type[RMSNorm]) -> tuple[RMSNorm, RMSNorm | None]:
        """The norms of q and, where it has keys of its own, of k."""
        q, k = (norm(w / name, c.head_dim, c.norm_eps) for name in self.qk_names)
        return q, k

    def turn(self, qk: torch.Tensor, step: Step) -> torch.Tensor:
        """The heads of q and k, normalised and rotated: [T, heads + kv_heads, head_dim] -> the same."""
        return self.rotate(self.normalise(qk), step)

    def normalise(self, qk: torch.Tensor) -> torch.Tensor:
        if self.q_norm is None or self.k_norm is None:
            return qk
        return torch.cat((self.q_norm(qk[:, : self.heads]), self.k_norm(qk[:, self.heads :])), dim=1)

    def rotate(self, qk: torch.Tensor, step: Step) -> torch.Tensor:
        if self.rope is None:
            return qk
        positions = step.positions[0] if self.rope.axes == 1 else step.positions
        return self.rope(qk, positions)  # type: ignore[no-any-return]

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        layer = self.layer
        attended = step.backend.attend(*self.make_heads(x, step), layer, step.cache, step.attention[layer.group])
        return self.project(attended, x)

    def make_heads(self, x: torch.Tensor, step: Step) -> Attended:
        """The heads of x [T, hidden] as they are attended to and kept: q [T, heads, head_dim], and of k and v
        [T, kv_heads, head_dim] each.
        """
        rotated = self.heads + self.kv_heads
        qkv = self.qkv(x).view(-1, rotated + self.kv_heads, self.head_dim)
        qk, v = self.turn(qkv[:, :rotated], step), qkv[:, rotated:]
        return qk[:, : self.heads], qk[:, self.heads :], v

    def project(self, attended: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """What heads found [T, heads, head_dim], and the layer's own input -> [T, hidden]."""
        return self.out(attended.flatten(1))  # type: ignore[no-any-return]


class ReadingAttention(Attention):
    """q from the tokens, k and v from the cache of an earlier layer, number ``reads``: x [T, hidden] -> [T, hidden].

    It has no projections of k and v, and keeps nothing. Its window and its heads of k and v are those of that layer.
    """

    variation: ClassVar[str] = "reading"

    def __init__(self, w: Weights, c: Sizes, layer: int, rope: Rope | None, *, reads: int, **given: Any) -> None:
        super().__init__(w, c, layer, rope, **{**given, "fused": _queries_alone})
        self.layer = dataclasses.replace(self.layer, reads=reads)

    def make_norms(self, w: Weights, c: Sizes, heads: Heads, norm: type[RMSNorm]) -> tuple[RMSNorm, RMSNorm | None]:
        return norm(w / self.qk_names[0], c.head_dim, c.norm_eps), None

    def normalise(self, qk: torch.Tensor) -> torch.Tensor:
        return qk if self.q_norm is None else self.q_norm(qk)

    def make_heads(self, x: torch.Tensor, step: Step) -> Attended:
        q = self.turn(self.qkv(x).view(-1, self.heads, self.head_dim), step)
        # there is no cache while memory is being measured: any keys will do
        any_keys = None if step.cache is not None else q[:, : self.kv_heads]
        return q, any_keys, any_keys


def _queries_alone(heads: Heads) -> list[Part]:
    return [heads.part("q_proj")]


class CrossAttention(nn.Module):
    """q from the tokens, k and v from the media item that their row attends to: x [T, hidden] -> [T, hidden].

    Heads are split over the ranks as in ``Attention``. An item has at most ``source`` embeddings of ``width`` numbers;
    0 is as many as a token has. ``qk_norm`` normalises every head of q and k. Where the item is ``optional``, what
    tokens of rows without one get does not matter, and the model leaves it out.
    """

    def __init__(
        self,
        w: Weights,
        c: Sizes,
        layer: int,
        source: int,
        *,
        bias: bool = False,
        unbiased: Sequence[str] = (),
        scale: float | None = None,
        cap: float | None = None,
        width: int = 0,
        qk_norm: bool = False,
        optional: bool = False,
    ) -> None:
        super().__init__()
        heads = Heads(w, c)
        query, *keys = (heads.part(name, biased=name not in unbiased) for name in ("q_proj", "k_proj", "v_proj"))
        self.q = Column(w, [query], c.hidden_size, bias=bias)
        self.kv = Column(w, keys, width or c.hidden_size, bias=bias)
        self.out = heads.out(w, bias=bias)
        self.layer = dataclasses.replace(heads.layer(layer, source=source, scale=scale, cap=cap), optional=optional)
        q_norm, k_norm = (RMSNorm(w / name, c.head_dim, c.norm_eps) if qk_norm else None for name in Attention.qk_names)
        self.q_norm, self.k_norm = q_norm, k_norm

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        layer = self.layer
        q = self.q(x).unflatten(-1, (layer.heads, -1))
        q = q if self.q_norm is None else self.q_norm(q)
        # there is no cache while memory is being measured: any keys will do
        measured = x.new_zeros(len(x), self.kv.linear.layer.inputs) if step.cache is None else None
        k, v = (None, None) if measured is None else self._keys_and_values(measured)
        attended = step.backend.attend(q, k, v, layer, step.cache, step.attention[layer.group])
        return self.out(attended.flatten(1))  # type: ignore[no-any-return]

    def write(self, item: torch.Tensor, step: Step) -> None:
        """Put k and v of an item's embeddings [count, hidden], which are the tokens of ``step``, into the cache."""
        layer = self.layer
        item = item.to(self.kv.linear.layer.dtype)
        step.backend.write(*self._keys_and_values(item), layer, step.cache, step.attention[layer.group])

    def _keys_and_values(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = self.kv(x).unflatten(-1, (2, self.layer.kv_heads, -1)).unbind(-3)
        return k if self.k_norm is None else self.k_norm(k), v
