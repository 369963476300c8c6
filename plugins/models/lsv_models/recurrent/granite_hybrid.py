"""Granite 4 hybrids: Mamba 2, and attention in a few layers, with multipliers; perhaps experts beside the MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_models.recurrent.bamba import KINDS
from lsv_models.recurrent.hybrid import HybridLayer, read_kinds, read_mamba2
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.mamba2_mixer import Mamba2Mixer
from lsv_models.recurrent.stack import Scaled, Stack
from lsv_models.rms.granite import read_multipliers
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.embed import ScaledHead
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.moe import MoE, SharedMoE
from lsv_runtime.nn.rope import Rope
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights

NAMES = ("input_linear", "input_linear", "output_linear")
"""Gate and up, which are one tensor, and down of the MLP that all tokens go through."""


class GraniteHybrid(Stack):
    names = (
        (r"\.block_sparse_moe\.input_linear\.weight$", ".block_sparse_moe.experts.gate_up_proj"),
        (r"\.block_sparse_moe\.output_linear\.weight$", ".block_sparse_moe.experts.down_proj"),
        (r"\.block_sparse_moe\.router\.layer\.", ".block_sparse_moe.gate."),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        ignore(keys, "layer_types", "layers_block_type", "normalization_function", "init_method")
        experts, top = keys.take("num_local_experts", int, 8), keys.count("num_experts_per_tok", 2)
        c = read_multipliers(keys, DecoderConfig.read(keys))
        sizes = read_mamba2(keys, c.hidden_size, c.norm_eps, c.activation)
        inner, positions = keys.count("shared_intermediate_size", 1024), keys.maybe("position_embedding_type", str)
        keys.finish("GraniteHybrid")
        kinds = read_kinds(config, ("layers_block_type", "layer_types"), c.layers, KINDS) or ["recurrent"] * c.layers
        rope = Rope(w, c.rope, max_len) if positions == "rope" else None

        def layer(i: int) -> HybridLayer:
            place = w / "model" / "layers" / i
            mlp: Bindable = GatedMLP(place / "shared_mlp", c.hidden_size, inner, c.activation, names=NAMES)
            if experts:
                shape = (c.hidden_size, c.intermediate_size, c.activation)
                mlp = SharedMoE(MoE(place / "block_sparse_moe", *shape, experts=experts, top=top), mlp)
            bias, scale = c.attention_bias, c.attention_scale
            mixer = (
                Attention(place / "self_attn", c, i, rope, qkv_bias=bias, out_bias=bias, scale=scale)
                if kinds[i] == "attention"
                else Mamba2Mixer(place.replicated() / "mamba", sizes, i)
            )
            return HybridLayer(place, c, mixer, mlp, scale=c.residual_multiplier)

        layers = map(layer, range(c.layers))
        super().__init__(w, (c.vocab_size, c.hidden_size), layers, eps=c.norm_eps, tied=c.tied)
        self.embed, self.head = Scaled(self.embed, c.embedding_multiplier), ScaledHead(self.head, c.logit_divisor, None)
