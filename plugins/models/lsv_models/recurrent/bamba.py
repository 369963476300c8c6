"""Bamba: layers of Mamba 2, and attention in a few of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_models.recurrent.hybrid import HybridLayer, read_kinds, read_mamba2
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.mamba2_mixer import Mamba2Mixer
from lsv_models.recurrent.stack import Names, Stack
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights

KINDS = {
    "mamba": "recurrent", "linear_attention": "recurrent", "attention": "attention", "full_attention": "attention",
}  # fmt: skip


class Bamba(Stack):
    names = ((r"\.feed_forward\.", ".mlp."), (r"\.pre_ff_layernorm\.", ".post_attention_layernorm."))

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        listed = keys.maybe("attn_layer_indices", list) or []
        ignore(keys, "attn_rotary_emb", "layer_types", "layers_block_type")
        c = DecoderConfig.read(keys, norm_eps=1e-5, rotary_fraction=0.5)
        sizes = read_mamba2(keys, c.hidden_size, c.norm_eps, c.activation)
        keys.finish("Bamba")
        kinds = read_kinds(config, ("layers_block_type", "layer_types"), c.layers, KINDS) or [
            "attention" if layer in listed else "recurrent" for layer in range(c.layers)
        ]
        rope = Rope(w, c.rope, max_len)

        def layer(i: int) -> HybridLayer:
            place = w / "model" / "layers" / i
            mixer = (
                Attention(place / "self_attn", c, i, rope, qkv_bias=c.attention_bias, out_bias=c.attention_bias)
                if kinds[i] == "attention"
                else Mamba2Mixer(place.replicated() / "mamba", sizes, i)
            )
            mlp = GatedMLP(place / "mlp", c.hidden_size, c.intermediate_size, c.activation, bias=c.mlp_bias)
            return HybridLayer(place, c, mixer, mlp)

        super().__init__(
            w, (c.vocab_size, c.hidden_size), map(layer, range(c.layers)), eps=c.norm_eps, tied=c.tied,
            names=Names(norm="model.final_layernorm"),
        )  # fmt: skip
