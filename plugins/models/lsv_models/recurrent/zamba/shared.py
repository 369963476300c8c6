"""A block of attention and MLP that several layers share, each with keys and values, and perhaps adapters, of its own.

It is given the model's embeddings beside what the layers before have made of them, so x is [T, 2 * hidden] all along.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from lsv_models.recurrent.stack import Names, Stack
from lsv_runtime.nn.attention import Attention, Heads
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights


class Block:
    """The shared modules, which are parts of a model where a layer uses them."""

    def __init__(
        self, w: Weights, c: DecoderConfig, rope: Rope | None, *, names: tuple[str, str, str], bias: bool = False
    ) -> None:
        """``names`` are gate, up and down of the MLP."""
        self.c, wide = c, dataclasses.replace(c, hidden_size=2 * c.hidden_size)
        self.before_attn = RMSNorm(w / "input_layernorm", wide.hidden_size, c.norm_eps)
        place = w / "self_attn"
        scale = (c.head_dim / 2) ** -0.5
        self.attn = Attention(place, wide, 0, rope, scale=scale, heads=Heads(place, c))
        self.before_mlp = RMSNorm(w / "pre_ff_layernorm", c.hidden_size, c.norm_eps)
        self.mlp = GatedMLP(
            w / "feed_forward", c.hidden_size, c.intermediate_size, c.activation, names=names, bias=bias
        )


class SharedAttention(Attention):
    """Another's projections, with keys and values of its own."""

    variation: ClassVar[str] = "shared"

    def __init__(self, other: Attention, index: int, adapters: Sequence[nn.Module]) -> None:
        Bindable.__init__(self)
        self.qkv: Any = Adapted(other.qkv, adapters) if adapters else other.qkv
        self.out, self.rope, self.q_norm, self.k_norm = other.out, other.rope, None, None
        self.layer = dataclasses.replace(other.layer, index=index)
        self.heads, self.kv_heads, self.head_dim = other.heads, other.kv_heads, other.head_dim


class Adapted(nn.Module):
    """A linear layer, with the outputs of several adapters added one after another."""

    def __init__(self, inner: Column, adapters: Sequence[nn.Module]) -> None:
        super().__init__()
        self.inner, self.linear, self.adapters = inner, inner.linear, nn.ModuleList(adapters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = torch.cat([adapter(x) for adapter in self.adapters], dim=-1)
        return self.inner(x) + added  # type: ignore[no-any-return]


class AdaptedMLP(nn.Module):
    """Another's MLP with an adapter at gate and up."""

    def __init__(self, other: GatedMLP, adapter: nn.Module) -> None:
        super().__init__()
        self.gate_up, self.act, self.down = Adapted(other.gate_up, [adapter]), other.act, other.down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.gate_up(x)))  # type: ignore[no-any-return]


class Use(nn.Module):
    """A layer's use of a block, and a projection behind it: x [T, 2 * hidden] -> [T, hidden]."""

    def __init__(
        self, w: Weights, block: Block, index: int, *, adapters: Sequence[nn.Module] = (), mlp: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.before_attn, self.before_mlp = block.before_attn, block.before_mlp
        self.attn = SharedAttention(block.attn, index, adapters)
        self.mlp = mlp or block.mlp
        self.project = Column.even(w.replicated(), ("linear",), block.c.hidden_size, block.c.hidden_size)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        y = self.attn(self.before_attn(x), step)
        return self.project(self.mlp(self.before_mlp(y)))  # type: ignore[no-any-return]


class ZambaLayer(nn.Module):
    """A recurrent layer, which is given what a shared block adds: x [T, 2 * hidden] -> [T, 2 * hidden]."""

    def __init__(self, w: Weights, c: DecoderConfig, mixer: nn.Module, use: Use | None) -> None:
        super().__init__()
        self.norm = RMSNorm(w / "input_layernorm", c.hidden_size, c.norm_eps)
        self.mixer, self.use = mixer, use

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        hidden, embedded = x.chunk(2, dim=-1)
        given = hidden if self.use is None else hidden + self.use(x, step)
        hidden = hidden + self.mixer(self.norm(given.contiguous()), step)
        return torch.cat((hidden, embedded), dim=-1)


class Twice(nn.Module):
    """An embedding, and once more: ids [T] -> [T, 2 * hidden]."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed

    def forward(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        x = self.embed(ids, step)
        return torch.cat((x, x), dim=-1)


class First(nn.Module):
    """A norm of the first half of what it is given."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.chunk(2, dim=-1)[0].contiguous())  # type: ignore[no-any-return]


class SharingStack(Stack):
    """The model around such layers. ``shared`` is where the layers that come first with a block have it."""

    shared: ClassVar[str]

    def __init__(self, w: Weights, c: DecoderConfig, layers: Iterable[ZambaLayer], owners: Iterable[int]) -> None:
        super().__init__(
            w, (c.vocab_size, c.hidden_size), layers, eps=c.norm_eps, tied=c.tied,
            names=Names(norm="model.final_layernorm"),
        )  # fmt: skip
        self.embed, self.norm, self.stream = Twice(self.embed), First(self.norm), (2 * c.hidden_size, w.dtype)
        first = "|".join(map(str, owners))
        self.ignores = (*self.ignores, rf"^model\.layers\.(?!({first})\.)\d+\.{self.shared}\.")
