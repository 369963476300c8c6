"""Jamba: layers of Mamba and of attention without positions, and experts in every few of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_models.recurrent.hybrid import HybridLayer
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.mamba import read_rank
from lsv_models.recurrent.mamba_mixer import MambaMixer, MambaSizes
from lsv_models.recurrent.stack import Names, Stack
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.moe import MoE
from lsv_runtime.weights.place import Weights


class Jamba(Stack):
    names = (
        (r"\.feed_forward\.router\.", ".mlp.gate."),
        (r"\.feed_forward\.", ".mlp."),
        (r"\.pre_ff_layernorm\.", ".post_attention_layernorm."),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        c = DecoderConfig.read(keys)
        sizes = MambaSizes(
            hidden=c.hidden_size,
            inner=keys.count("mamba_expand", 2) * c.hidden_size,
            state=keys.count("mamba_d_state", 16),
            rank=read_rank(keys, "mamba_dt_rank", c.hidden_size),
            conv=keys.count("mamba_d_conv", 4),
            activation=c.activation,
            bias=keys.take("mamba_proj_bias", bool, False),
            conv_bias=keys.take("mamba_conv_bias", bool, True),
            eps=c.norm_eps,
            norms="weighted",
        )
        keys.agree("mamba_inner_layernorms", True)
        every, first = keys.count("attn_layer_period", 8), keys.take("attn_layer_offset", int, 4)
        sparse, begin = keys.count("expert_layer_period", 2), keys.take("expert_layer_offset", int, 1)
        other = keys.take("num_local_experts", int, 16)
        experts, top = keys.count("num_experts", other), keys.count("num_experts_per_tok", 2)
        ignore(
            keys,
            "use_mamba_kernels",
            "use_mambapy",
            "use_associative_scan",
            "num_logits_to_keep",
            "calc_logits_for_entire_prompt",
        )
        ignore(keys, "layers_block_type", "layer_types", "layers_num_experts")
        keys.finish("Jamba")

        def layer(i: int) -> HybridLayer:
            place = w / "model" / "layers" / i
            attends = i % every == first
            mixer = (
                Attention(place / "self_attn", c, i, None)
                if attends
                else MambaMixer(place.replicated() / "mamba", sizes, i)
            )
            shape = (place / "mlp", c.hidden_size, c.intermediate_size, c.activation)
            if i % sparse == begin and experts > 1:
                return HybridLayer(place, c, mixer, MoE(*shape, experts=experts, top=top, normalise=False))
            return HybridLayer(place, c, mixer, GatedMLP(*shape))

        super().__init__(
            w, (c.vocab_size, c.hidden_size), map(layer, range(c.layers)), eps=c.norm_eps, tied=c.tied,
            names=Names(norm="model.final_layernorm"),
        )  # fmt: skip
