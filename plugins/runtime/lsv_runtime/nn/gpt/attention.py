"""Attention of GPT-like decoders: fused projections, norms of heads, bounds, ALiBi."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.attention import Attention, Heads
from lsv_runtime.nn.gpt.config import GptConfig
from lsv_runtime.nn.gpt.form import Form, Projections
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.norm import HeadNorm, LayerNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Part, Piece, Weights
from lsv_runtime.weights.quantizer import Linear


class FusedHeads(Heads):
    """Heads whose projections have a family's own names, or are one tensor."""

    def __init__(self, w: Weights, c: GptConfig, projections: Projections) -> None:
        super().__init__(w, c)
        self._projections = projections
        blocks = c.kv_heads if projections.blocks is None else projections.blocks
        if c.heads % blocks or c.kv_heads % blocks:
            raise CheckpointError(
                f"config.json: {c.heads} heads and {c.kv_heads} of keys can't be cut in {blocks} blocks"
            )
        self._shares = {"q": c.heads // blocks, "k": c.kv_heads // blocks, "v": c.kv_heads // blocks}

    def part(self, name: str, *, biased: bool = True) -> Part:
        names, kind = self._projections.names, name[0]
        if len(names) == 3:
            return replace(super().part(name, biased=biased), name=names["qkv".index(kind)])
        total = (self._c.heads + 2 * self._c.kv_heads) * self._c.head_dim
        runs = self._runs(kind)
        return Part(names[0], total, runs[0][0], runs[-1][1], biased, runs)

    def out(self, w: Weights, *, bias: bool, name: str = "") -> Row:
        return super().out(w, bias=bias, name=name or self._projections.out)

    def _runs(self, kind: str) -> tuple[tuple[int, int], ...]:
        """Where in the fused tensor this rank's heads of q, k or v are."""
        dim, order, shares = self._c.head_dim, self._projections.order, self._shares
        before = sum(shares[other] for other in order[: order.index(kind)])
        found: list[tuple[int, int]] = []
        for head in range(*(self.queries if kind == "q" else self.kv)):
            block, place = divmod(head, shares[kind])
            start = (block * sum(shares.values()) + before + place) * dim
            follows = bool(found) and found[-1][1] == start
            found.append((found.pop()[0] if follows else start, start + dim))
        return tuple(found)


class Bounded(Column):
    """A column whose outputs are kept within a bound on either side of 0."""

    def __init__(self, linear: Linear, bound: float) -> None:
        nn.Module.__init__(self)
        self.linear, self.adapters, self.bound = linear, None, bound

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).clamp(-self.bound, self.bound)


class GptAttention(Attention):
    """As ``Attention``, in the form of a family."""

    op = "attention.gpt"

    def __init__(self, w: Weights, c: GptConfig, form: Form, layer: int, rope: Rope | None) -> None:
        heads = FusedHeads(w, c, form.projections)
        super().__init__(w, c, layer, rope, qkv_bias=form.qkv_bias, out_bias=form.out_bias, heads=heads)
        if c.clip is not None:
            self.qkv = Bounded(self.qkv.linear, c.clip)
        self.head_norms: nn.ModuleList | None = None
        if form.make_head_norm is not None:
            of = (("q", c.heads, heads.queries), ("k", c.kv_heads, heads.kv))
            self.head_norms = nn.ModuleList(form.make_head_norm(w, kind, c, total, own) for kind, total, own in of)
        if c.scales is not None:
            self.layer = replace(self.layer, scale=c.scales[layer])
        if c.slopes is not None:
            slopes = torch.tensor(c.slopes[slice(*heads.queries)], dtype=torch.float32, device=w.device)
            self.layer = replace(self.layer, alibi=slopes)

    def normalise(self, qk: torch.Tensor) -> torch.Tensor:
        if self.head_norms is None:
            return qk
        parts = qk[:, : self.heads], qk[:, self.heads :]
        return torch.cat([norm(part) for norm, part in zip(self.head_norms, parts, strict=True)], dim=1)


def one_norm(w: Weights, kind: str, c: GptConfig, heads: int, own: tuple[int, int]) -> nn.Module:
    """One norm for all heads."""
    return LayerNorm(w / f"{kind}_layernorm", c.head_dim, c.norm_eps)


def stacked_norms(w: Weights, kind: str, c: GptConfig, heads: int, own: tuple[int, int]) -> nn.Module:
    """A norm for each head, in one tensor; every rank has them all."""
    return HeadNorm((w / f"{kind}_norm").take("weight", (heads, c.head_dim)), c.norm_eps, own)


def listed_norms(w: Weights, kind: str, c: GptConfig, heads: int, own: tuple[int, int]) -> nn.Module:
    """A norm for each head, in a tensor of its own; every rank has them all."""
    whole = (slice(0, c.head_dim),)
    names = ((w / f"{kind}_layernorm" / "norms" / head / "weight").name for head in range(heads))
    pieces = [Piece(name, (c.head_dim,), whole, whole, head) for head, name in enumerate(names)]
    return HeadNorm(w.declare((heads, c.head_dim), pieces), c.norm_eps, own)
