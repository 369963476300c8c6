"""Qwen3-Next and Qwen3.5: layers of the gated delta rule, gated attention in every fourth, perhaps experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from lsv_models.recurrent.delta.mixer import DeltaMixer, DeltaSizes, PlainDeltaMixer
from lsv_models.recurrent.hybrid import HybridLayer, read_kinds, with_defaults
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.stack import Stack
from lsv_models.rms.blocks import OffsetRMSNorm
from lsv_models.sparse.experts import Experts, make_mlp
from lsv_runtime.nn.attention import Attention, Heads
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Part, Weights

KINDS = {"linear_attention": "recurrent", "full_attention": "attention"}


class GatedAttention(Attention):
    """Attention whose output each query head gates; its gate is projected beside its query."""

    op: ClassVar[str] = "attention.gated"

    def __init__(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope) -> None:
        nn.Module.__init__(self)
        heads, wide = Heads(w, c), 2 * c.head_dim
        first, last = heads.queries
        queries = Part("q_proj", c.heads * wide, first * wide, last * wide)
        parts = (queries, heads.part("k_proj"), heads.part("v_proj"))
        self.qkv = Column(w, parts, c.hidden_size, bias=c.attention_bias)
        self.out = heads.out(w, bias=c.attention_bias)
        self.q_norm, self.k_norm = (OffsetRMSNorm(w / name, c.head_dim, c.norm_eps) for name in ("q_norm", "k_norm"))
        self.rope = rope
        self.layer = heads.layer(layer)
        self.heads, self.kv_heads, self.head_dim = self.layer.heads, self.layer.kv_heads, c.head_dim

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        queries = 2 * self.heads * self.head_dim
        qkv = self.qkv(x)
        q, gate = qkv[:, :queries].unflatten(-1, (self.heads, 2, self.head_dim)).unbind(2)
        k, v = qkv[:, queries:].unflatten(-1, (2, self.kv_heads, self.head_dim)).unbind(1)
        positions = step.positions[0] if self.rope.axes == 1 else step.positions
        qk = self.rope(torch.cat((self.q_norm(q), self.k_norm(k)), dim=1), positions)
        layer = self.layer
        y = step.backend.attend(
            qk[:, : self.heads], qk[:, self.heads :], v, layer, step.cache, step.attention[layer.group]
        )
        return self.out((y * torch.sigmoid(gate)).flatten(1))  # type: ignore[no-any-return]


class Qwen3Next(Stack):
    ignores = (*Stack.ignores, r"^mtp\.")
    make_norm = OffsetRMSNorm
    mixer: ClassVar[type[DeltaMixer]] = DeltaMixer
    defaults: ClassVar[Mapping[str, Any]] = {
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512, "norm_topk_prob": True,
        "shared_expert_intermediate_size": 512,
    }  # fmt: skip
    """The experts that a config.json need not mention; without these there are none."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = self.read_keys(config)
        every = keys.count("full_attention_interval", 4)
        ignore(keys, "layer_types", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
        c, sizes = DecoderConfig.read(keys, rotary_fraction=0.25), DeltaSizes.read(keys)
        experts = read_experts(keys, c.layers) if self.defaults else None
        keys.finish(type(self).__name__)
        kinds = read_kinds(config, ("layer_types",), c.layers, KINDS) or [
            "recurrent" if (layer + 1) % every else "attention" for layer in range(c.layers)
        ]
        rope = Rope(w, c.rope, max_len)

        def layer(i: int) -> HybridLayer:
            place = w / "model" / "layers" / i
            if kinds[i] == "attention":
                return attention_layer(place, c, i, rope, experts)
            return _layer(place, c, self.mixer(place.replicated() / "linear_attn", sizes, c, i), i, experts)

        layers = map(layer, range(c.layers))
        super().__init__(w, (c.vocab_size, c.hidden_size), layers, eps=c.norm_eps, tied=c.tied)

    @classmethod
    def read_keys(cls, config: Mapping[str, Any]) -> Keys:
        """Those of config.json, with the family's values for what it leaves out."""
        given = {"head_dim": 256, **cls.defaults}
        return Keys(with_defaults(_with_experts(config), **given))


class Qwen35(Qwen3Next):
    """Qwen3.5's text: without experts."""

    mixer = PlainDeltaMixer
    defaults = {}


class Qwen35Moe(Qwen3Next):
    """Qwen3.5's text, with experts in all layers."""

    mixer = PlainDeltaMixer
    defaults = {**Qwen3Next.defaults, "num_experts": 256, "num_experts_per_tok": 8, "intermediate_size": 512}


def attention_layer(w: Weights, c: DecoderConfig, layer: int, rope: Rope, experts: Experts | None) -> HybridLayer:
    """One of gated attention, and of experts if there are any; ``layer`` is its number in the model."""
    return _layer(w, c, GatedAttention(w / "self_attn", c, layer, rope), layer, experts)


def _layer(w: Weights, c: DecoderConfig, mixer: nn.Module, layer: int, experts: Experts | None) -> HybridLayer:
    place = w / "mlp"
    mlp = (
        make_mlp(place, c, layer, experts)
        if experts
        else GatedMLP(place, c.hidden_size, c.intermediate_size, c.activation)
    )
    return HybridLayer(w, c, mixer, mlp, norm=OffsetRMSNorm)


def _with_experts(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json with the number of experts under the name that older files have for it."""
    return {"num_experts": config["num_local_experts"], **config} if config.get("num_local_experts") else config


def read_experts(keys: Keys, layers: int) -> Experts:
    """The experts of a model with so many layers."""
    ignore(keys, "num_local_experts")
    shared = keys.count("shared_expert_intermediate_size")
    experts = Experts.read_qwen(keys, layers)
    return dataclasses.replace(experts, shared=shared, shared_name="shared_expert", shared_gate="shared_expert_gate")
