"""Layers of text encoder-decoders: those of the encoder see a whole text at once, those of the decoder are cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from lsv_runtime import products
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.nn.attention import Attention, CrossAttention, Heads
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import make_mlp
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
plain = partial(Attention, rope=None)
"""Attention without positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The sizes of an encoder or of a decoder, as ``lsv_runtime.nn.attention`` takes them."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    activation: str

    @property
    def windows(self) -> tuple[None, ...]:
        return (None,) * self.layers


Numbers = Side | DecoderConfig
Norms = Literal["pre", "post", "sandwich"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How the layers of a family are put together."""

    norms: Norms = "post"
    """Whether a block's input is normed, or the sum behind it, or both its input and what it adds."""
    norm: Callable[[Weights, int, float], nn.Module] = LayerNorm
    bias: bool = True
    """Whether the projections of attention have one."""
    mlp_bias: bool = True
    """Whether the layers of the feed-forward block do."""
    mlp: tuple[str, ...] = ("fc1", "fc2")
    """The layers of the feed-forward block, at the place of the layer itself; three where it has a gate."""
    scale: float | None = None
    """What products of queries and keys are multiplied by; None for 1 / sqrt(head_dim)."""
    cap: float | None = None
    """Bounds scores: ``cap * tanh(score / cap)``."""


class Block(nn.Module):
    """What a layer adds to x [T, hidden], and the norms around it, which are called after it."""

    def __init__(self, inner: nn.Module, w: Weights, name: str, c: Numbers, form: Form) -> None:
        super().__init__()
        self.inner, self.norms = inner, form.norms
        self.norm = form.norm(w / f"{name}_layer_norm", c.hidden_size, c.norm_eps)
        self.after = (
            form.norm(w / f"{name}_after_norm", c.hidden_size, c.norm_eps) if form.norms == "sandwich" else None
        )

    def forward(self, x: torch.Tensor, *given: Any) -> torch.Tensor:
        if self.norms == "post":
            return self.norm(x + self.inner(x, *given))  # type: ignore[no-any-return]
        y = self.inner(self.norm(x), *given)
        return x + (y if self.after is None else self.after(y))  # type: ignore[no-any-return]


class EncoderAttention(nn.Module):
    """x [T, hidden] -> [T, hidden]; every token attends to all. Heads are split over the ranks.

    ``bias`` float [heads, T, T] is added to the scores. ``rope`` rotates heads by the places of their tokens.
    """

    def __init__(self, w: Weights, c: Numbers, form: Form, rope: Rope | None = None) -> None:
        super().__init__()
        heads = Heads(w, c)
        self.qkv = Column(w, [heads.part(name) for name in PROJECTIONS], c.hidden_size, bias=form.bias)
        self.out = heads.out(w, bias=form.bias)
        self.layer = heads.layer(0, scale=form.scale, cap=form.cap)
        self.rope = rope

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        layer = self.layer
        qkv = self.qkv(x).view(len(x), -1, layer.head_dim)
        qk, v = qkv.split((layer.heads + layer.kv_heads, layer.kv_heads), dim=1)
        qk = self.turn(qk)
        attended = self.attend(qk[:, : layer.heads], qk[:, layer.heads :], v, bias)
        return self.out(attended.flatten(1))  # type: ignore[no-any-return]

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim] -> [T, heads, head_dim]."""
        return see_all(q, k, v, self.layer, bias)

    def turn(self, qk: torch.Tensor) -> torch.Tensor:
        return qk if self.rope is None else self.rope(qk, torch.arange(len(qk), device=qk.device))


def see_all(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, bias: torch.Tensor | None
) -> torch.Tensor:
    """q [T, heads, dim] over all of k and v [S, kv_heads, dim], scaled and capped as in ``layer``."""
    q, k, v = (heads.transpose(0, 1)[None] for heads in (q, k, v))
    grouped = layer.heads != layer.kv_heads
    if layer.soft_cap is None:
        attended = products.attend(q, k, v, mask=bias, scale=layer.scale, grouped=grouped)
        return attended[0].transpose(0, 1)
    k, v = (heads.repeat_interleave(layer.heads // layer.kv_heads, 1) for heads in (k, v))
    scores = torch.tanh(products.matmul(q, k.mT) * (layer.scale / layer.soft_cap)) * layer.soft_cap
    weights = (scores if bias is None else scores + bias).float().softmax(-1)
    return products.matmul(weights.to(v.dtype), v)[0].transpose(0, 1)


class EncoderLayer(nn.Module):
    """Attention, then the feed-forward block: x [T, hidden] -> [T, hidden].

    ``attention`` and ``mlp`` take the places of what ``form`` says.
    """

    def __init__(
        self, w: Weights, c: Numbers, form: Form, *, attention: nn.Module | None = None, mlp: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.attn = Block(attention or EncoderAttention(w / "self_attn", c, form), w, "self_attn", c, form)
        self.mlp = Block(mlp or _make_mlp(w, c, form), w, "final", c, form)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self.mlp(self.attn(x, bias))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Attention to the tokens so far, then to the encoded text, then the feed-forward block.

    Layer ``index`` attends to texts of at most ``source`` tokens, each of which is ``width`` numbers; 0 is as many as a
    token of its own has.
    """

    def __init__(
        self,
        w: Weights,
        c: Numbers,
        form: Form,
        index: int,
        source: int,
        *,
        attention: Callable[..., nn.Module] = plain,
        cross: type[CrossAttention] = CrossAttention,
        mlp: nn.Module | None = None,
        width: int = 0,
    ) -> None:
        super().__init__()
        bias, scale, cap = form.bias, form.scale, form.cap
        attn = attention(w / "self_attn", c, index, qkv_bias=bias, out_bias=bias, scale=scale, cap=cap)
        self.attn = Block(attn, w, "self_attn", c, form)
        place, number = w / "encoder_attn", c.layers + index
        read = cross(place, c, number, source, bias=bias, scale=scale, cap=cap, width=width)
        self.cross = Block(read, w, "encoder_attn", c, form)
        self.mlp = Block(mlp or _make_mlp(w, c, form), w, "final", c, form)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        return self.mlp(self.cross(self.attn(x, step), step))  # type: ignore[no-any-return]


def _make_mlp(w: Weights, c: Numbers, form: Form) -> nn.Module:
    return make_mlp(w, form.mlp, c.hidden_size, c.intermediate_size, c.activation, bias=form.mlp_bias)
