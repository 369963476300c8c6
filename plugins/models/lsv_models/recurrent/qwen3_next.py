"""Qwen3-Next and Qwen3.5: layers of the gated delta rule, gated attention in every fourth, perhaps experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv.nn.attention import Attention, Heads
from lsv.nn.config import DecoderConfig
from lsv.nn.keys import Keys
from lsv.nn.linear import Column, Row
from lsv.nn.mlp import GatedMLP
from lsv.nn.moe import MoE
from lsv.nn.recurrent.conv import CausalConv
from lsv.nn.recurrent.delta import GatedDelta
from lsv.nn.recurrent.states import StateCache
from lsv.nn.rope import Rope
from lsv.nn.step import Step
from lsv.weights.place import Part, Weights
from lsv_models.qwen3_moe import Experts
from lsv_models.recurrent.hybrid import HybridLayer, read_kinds, with_defaults
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.stack import Stack
from lsv_models.rms.blocks import OffsetRMSNorm

KINDS = {"linear_attention": "recurrent", "full_attention": "attention"}


class NormedGate(nn.Module):
    """``norm(x) * weight * silu(gate)`` of each head, in the dtype of ``gate``: x and gate [..., size]."""

    def __init__(self, w: Weights, size: int, eps: float) -> None:
        super().__init__()
        self.weight = w.take("weight", (size,))
        self.eps = eps

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        normed = functional.rms_norm(x.float(), self.weight.shape, None, self.eps).to(gate.dtype)
        return (self.weight * normed * functional.silu(gate.float())).to(gate.dtype)


class DeltaMixer(nn.Module):
    """x [T, hidden] -> [T, hidden]. Projections are ordered by key heads, each with its value heads."""

    def __init__(self, w: Weights, sizes: DeltaSizes, c: DecoderConfig, index: int) -> None:
        super().__init__()
        self.sizes = sizes
        self._declare(w, sizes, c.hidden_size)
        channels = 2 * sizes.keys + sizes.values
        self.conv = CausalConv(w / "conv1d", channels, sizes.conv, activation=c.activation, bias=False)
        self.scan = GatedDelta(w, sizes.heads, sizes.dim, sizes.key_heads, sizes.key_dim)
        self.cache = StateCache(w, index, (self.conv.part, self.scan.part))
        self.norm = NormedGate(w / "norm", sizes.dim, c.norm_eps)
        self.out = Row(w, "out_proj", sizes.values, c.hidden_size, reads=(0, sizes.values))

    def _declare(self, w: Weights, sizes: DeltaSizes, hidden: int) -> None:
        self.project = Column.even(w, ("in_proj_qkvz",), hidden, 2 * (sizes.keys + sizes.values))
        self.gates = Column.even(w, ("in_proj_ba",), hidden, 2 * sizes.heads)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values in a row; gates, strengths and decays."""
        c = self.sizes
        wide = c.heads // c.key_heads * c.dim
        parts = self.project(x).unflatten(-1, (c.key_heads, -1)).split((c.key_dim, c.key_dim, wide, wide), dim=-1)
        *mixed, gate = (part.flatten(1) for part in parts)
        strength, decay = (part.flatten(1) for part in self.gates(x).unflatten(-1, (c.key_heads, 2, -1)).unbind(2))
        return torch.cat(mixed, dim=-1), gate, strength, decay

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        c, states = self.sizes, self.cache.of(step)
        mixed, gate, strength, decay = self._project(x)
        q, k, v = self.conv(mixed, states).split((c.keys, c.keys, c.values), dim=-1)
        y = self.scan(q, k, v, decay, strength, states)
        y = self.norm(y.unflatten(-1, (c.heads, c.dim)), gate.unflatten(-1, (c.heads, c.dim)))
        return self.out(y.flatten(1))  # type: ignore[no-any-return]


class PlainDeltaMixer(DeltaMixer):
    """The same, with projections of their own, ordered by heads."""

    def _declare(self, w: Weights, sizes: DeltaSizes, hidden: int) -> None:
        self.qkv = Column.even(w, ("in_proj_qkv",), hidden, 2 * sizes.keys + sizes.values)
        self.gate = Column.even(w, ("in_proj_z",), hidden, sizes.values)
        self.strength = Column.even(w, ("in_proj_b",), hidden, sizes.heads)
        self.decay = Column.even(w, ("in_proj_a",), hidden, sizes.heads)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.qkv(x), self.gate(x), self.strength(x), self.decay(x)


class DeltaSizes:
    """The numbers of recurrent layers: heads and features of values and of keys."""

    def __init__(self, keys: Keys) -> None:
        self.heads, self.dim = keys.count("linear_num_value_heads", 32), keys.count("linear_value_head_dim", 128)
        self.key_heads, self.key_dim = keys.count("linear_num_key_heads", 16), keys.count("linear_key_head_dim", 128)
        self.conv = keys.count("linear_conv_kernel_dim", 4)
        self.keys, self.values = self.key_heads * self.key_dim, self.heads * self.dim


class GatedAttention(Attention):
    """Attention whose output each query head gates; its gate is projected beside its query."""

    op: ClassVar[str] = "attention.gated"

    def __init__(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope) -> None:
        nn.Module.__init__(self)
        heads, wide = Heads(w, c), 2 * c.heads * c.head_dim
        parts = (Part("q_proj", wide, 0, wide), heads.part("k_proj"), heads.part("v_proj"))
        self.qkv = Column(w, parts, c.hidden_size, bias=c.attention_bias)
        self.out = heads.out(w, bias=c.attention_bias)
        self.q_norm, self.k_norm = (OffsetRMSNorm(w / name, c.head_dim, c.norm_eps) for name in ("q_norm", "k_norm"))
        self.rope = rope
        self.layer = heads.layer(layer)
        self.heads, self.kv_heads, self.head_dim = c.heads, c.kv_heads, c.head_dim

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        queries = 2 * self.heads * self.head_dim
        qkv = self.qkv(x)
        q, gate = qkv[:, :queries].unflatten(-1, (self.heads, 2, self.head_dim)).unbind(2)
        k, v = qkv[:, queries:].unflatten(-1, (2, self.kv_heads, self.head_dim)).unbind(1)
        qk = self.rope(torch.cat((self.q_norm(q), self.k_norm(k)), dim=1), step.positions[0])
        layer = self.layer
        y = step.backend.attend(
            qk[:, : self.heads], qk[:, self.heads :], v, layer, step.cache, step.attention[layer.group]
        )
        return self.out((y * torch.sigmoid(gate)).flatten(1))  # type: ignore[no-any-return]


class SharedExpert(nn.Module):
    """Routed experts, and one for all tokens that a gate weighs: x [T, hidden] -> [T, hidden]."""

    def __init__(self, w: Weights, c: DecoderConfig, experts: Experts, size: int) -> None:
        super().__init__()
        self.routed = MoE(
            w, c.hidden_size, experts.size, c.activation,
            experts=experts.count, top=experts.top, normalise=experts.normalise,
        )  # fmt: skip
        self.shared = GatedMLP(w / "shared_expert", c.hidden_size, size, c.activation)
        self.weigh = (w / "shared_expert_gate").take("weight", (1, c.hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shared = torch.sigmoid(functional.linear(x, self.weigh)) * self.shared(x)
        return self.routed(x) + shared  # type: ignore[no-any-return]


class Qwen3Next(Stack):
    ignores = (*Stack.ignores, r"^mtp\.")
    make_norm = OffsetRMSNorm
    mixer: ClassVar[type[DeltaMixer]] = DeltaMixer
    experts: ClassVar[int] = 512
    """How many there are where config.json does not say."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(
            with_defaults(
                config, partial_rotary_factor=0.25, head_dim=256, norm_topk_prob=True, num_experts=self.experts,
                num_experts_per_tok=10, moe_intermediate_size=512,
            )
        )  # fmt: skip
        every = keys.count("full_attention_interval", 4)
        ignore(keys, "layer_types")
        c, experts, sizes = DecoderConfig.read(keys), Experts.read(keys), DeltaSizes(keys)
        shared = keys.count("shared_expert_intermediate_size", 512)
        keys.finish(type(self).__name__)
        kinds = read_kinds(config, ("layer_types",), c.layers, KINDS) or [
            "recurrent" if (layer + 1) % every else "attention" for layer in range(c.layers)
        ]
        rope = Rope(w, c.rope, max_len)

        def layer(i: int) -> HybridLayer:
            place = w / "model" / "layers" / i
            mixer = (
                GatedAttention(place / "self_attn", c, i, rope)
                if kinds[i] == "attention"
                else self.mixer(place / "linear_attn", sizes, c, i)
            )
            mlp = (
                SharedExpert(place / "mlp", c, experts, shared)
                if experts.sparse(i)
                else GatedMLP(place / "mlp", c.hidden_size, c.intermediate_size, c.activation)
            )
            return HybridLayer(place, c, mixer, mlp, norm=OffsetRMSNorm)

        layers = map(layer, range(c.layers))
        super().__init__(w, (c.vocab_size, c.hidden_size), layers, eps=c.norm_eps, tied=c.tied)


class Qwen35(Qwen3Next):
    """Qwen3.5's text: without experts."""

    mixer = PlainDeltaMixer
    experts = 0
