"""LFM2: gated short convolutions, and attention in a few layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lsv.nn.attention import Attention
from lsv.nn.config import DecoderConfig
from lsv.nn.keys import Keys
from lsv.nn.linear import Column, Row
from lsv.nn.mlp import GatedMLP
from lsv.nn.recurrent.conv import CausalConv
from lsv.nn.recurrent.states import StateCache
from lsv.nn.rope import Rope
from lsv.nn.step import Step
from lsv.weights.place import Weights
from lsv_models.recurrent.hybrid import HybridLayer, read_kinds, with_defaults
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.stack import Names, Stack


class ShortConv(nn.Module):
    """``out(c * conv(b * x))``: x [T, hidden] -> [T, hidden]."""

    def __init__(self, w: Weights, hidden: int, width: int, index: int, *, bias: bool) -> None:
        super().__init__()
        self.project = Column.even(w, ("in_proj",), hidden, 3 * hidden, bias=bias)
        self.conv = CausalConv(w / "conv", hidden, width, activation=None, bias=bias)
        self.cache = StateCache(w, index, (self.conv.part,))
        self.out = Row(w, "out_proj", hidden, hidden, reads=(0, hidden), bias=bias)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        b, c, x = self.project(x).chunk(3, dim=-1)
        return self.out(c * self.conv(b * x, self.cache.of(step)))  # type: ignore[no-any-return]


class Lfm2(Stack):
    names = (
        (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.([qk])_layernorm\.", r".\1_norm."),
        (r"\.operator_norm\.", ".input_layernorm."),
        (r"\.ffn_norm\.", ".post_attention_layernorm."),
        (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
        (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
        (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        renamed = {
            "rms_norm_eps": "norm_eps",
            "tie_word_embeddings": "tie_embedding",
            "intermediate_size": "block_ff_dim",
        }
        given = {**config, **{own: config[theirs] for own, theirs in renamed.items() if config.get(theirs) is not None}}
        keys = Keys(with_defaults(given, tie_word_embeddings=True))
        ignore(keys, *renamed.values(), "layer_types", "full_attn_idxs", "theta", "use_pos_enc")
        ignore(keys, "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu")
        ignore(keys, "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads")
        width, bias = keys.count("conv_L_cache", 3), keys.take("conv_bias", bool, False)
        c = DecoderConfig.read(keys, norm_eps=1e-5, rope_theta=1e6)
        inner = _inner(keys, c.intermediate_size)
        keys.finish("Lfm2")
        listed = config.get("full_attn_idxs")
        kinds = read_kinds(config, ("layer_types",), c.layers, {"conv": "conv", "full_attention": "attention"}) or [
            "attention" if listed is None or layer in listed else "conv" for layer in range(c.layers)
        ]
        rope = Rope(w, c.rope, max_len)

        def layer(i: int) -> HybridLayer:
            place = w / "model" / "layers" / i
            mixer = (
                Attention(place / "self_attn", c, i, rope, qk_norm=True)
                if kinds[i] == "attention"
                else ShortConv(place / "conv", c.hidden_size, width, i, bias=bias)
            )
            return HybridLayer(place, c, mixer, GatedMLP(place / "mlp", c.hidden_size, inner, "silu"))

        super().__init__(
            w, (c.vocab_size, c.hidden_size), map(layer, range(c.layers)), eps=c.norm_eps, tied=c.tied,
            names=Names(norm="model.embedding_norm"),
        )  # fmt: skip


def _inner(keys: Keys, size: int) -> int:
    """The inner features of MLPs, which the config may give before an adjustment."""
    adjust, multiple = keys.take("block_auto_adjust_ff_dim", bool, True), keys.count("block_multiple_of", 256)
    factor = keys.maybe("block_ffn_dim_multiplier", float)
    if not adjust:
        return size
    size = int(2 * size / 3)
    return size if factor is None else -(-int(factor * size) // multiple) * multiple
