"""Lara 4 Mini: layers of the gated delta rule, sliding windows, attention without positions, and experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lsv_models.recurrent.delta.mixer import DeltaMixer, DeltaSizes
from lsv_models.recurrent.hybrid import HybridLayer, read_kinds, with_defaults
from lsv_models.recurrent.stack import Stack
from lsv_models.sparse.experts import Experts, make_mlp
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights

_KINDS = {"linear_attention": "recurrent", "sliding_attention": "sliding", "full_attention": "full"}
_PATTERN = ("recurrent", "sliding", "recurrent", "full", "sliding")
"""The repeating pattern of kinds of layers, if config.json lists none."""
_DEFAULTS = {
    "num_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 512, "norm_topk_prob": True,
    "shared_expert_intermediate_size": 512, "head_dim": 128, "tie_word_embeddings": True, "intermediate_size": 512,
    "sliding_window": 512,
}  # fmt: skip


class FusedDeltaMixer(DeltaMixer):
    """A mixer with one projection for queries, keys, values, gates, strengths and decays."""

    def _declare(self, w: Weights, sizes: DeltaSizes, hidden: int) -> None:
        self.sections = (2 * sizes.keys + sizes.values, sizes.values, sizes.heads, sizes.heads)
        self.project = Column.even(w, ("in_proj",), hidden, sum(self.sections))

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.project(x).split(self.sections, dim=-1)  # type: ignore[no-any-return]


class LaraMini(Stack):
    names = ((r"\.linear_attn\.out_norm\.", ".linear_attn.norm."),)

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        given = with_defaults(config, **_DEFAULTS)
        layers = Keys(given).layers("num_hidden_layers")
        kinds = read_kinds(given, ("layer_types",), layers, _KINDS) or [
            _PATTERN[layer % len(_PATTERN)] for layer in range(layers)
        ]
        windowed = ["sliding_attention" if kind == "sliding" else "full_attention" for kind in kinds]
        keys = Keys({**given, "layer_types": windowed})
        c = DecoderConfig.read(keys, windows=True)
        sizes = DeltaSizes.read(keys, heads=16, key_heads=8)
        shared = keys.count("shared_expert_intermediate_size")
        experts = Experts.read_qwen(keys, layers)
        experts = dataclasses.replace(experts, exact=True, shared=shared, shared_name="shared_expert")
        keys.finish("LaraMini")
        rope = Rope(w, c.rope, max_len)

        def mixer(place: Weights, i: int) -> nn.Module:
            if kinds[i] == "recurrent":
                return FusedDeltaMixer(place.replicated() / "linear_attn", sizes, c, i)
            rotation, bias = rope if kinds[i] == "sliding" else None, c.attention_bias
            return Attention(place / "self_attn", c, i, rotation, qk_norm=True, qkv_bias=bias, out_bias=bias)

        def layer(i: int) -> HybridLayer:
            place = w / "model" / "layers" / i
            return HybridLayer(place, c, mixer(place, i), make_mlp(place / "mlp", c, i, experts))

        super().__init__(w, (c.vocab_size, c.hidden_size), map(layer, range(layers)), eps=c.norm_eps, tied=c.tied)
