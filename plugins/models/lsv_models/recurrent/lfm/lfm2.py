"""LFM2: gated short convolutions, and attention in a few layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.recurrent.hybrid import HybridLayer, read_kinds
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.stack import MIXTRAL, Names, Stack
from lsv_models.sparse.experts import Experts, make_mlp
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.recurrent.conv import CausalConv
from lsv_runtime.nn.recurrent.states import StateCache
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

_NAMES = {"rms_norm_eps": "norm_eps", "tie_word_embeddings": "tie_embedding", "intermediate_size": "block_ff_dim"}
"""What config.json calls common keys."""
_UNUSED = (
    "full_attn_idxs", "theta", "use_pos_enc", "block_dim", "block_mlp_init_scale", "block_norm_eps",
    "block_out_init_scale", "block_use_swiglu", "block_use_xavier_init", "conv_dim", "conv_dim_out",
    "conv_use_xavier_init", "num_heads",
)  # fmt: skip


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
        (r"\.feed_forward\.", ".mlp."),
        *MIXTRAL,
    )
    kinds: ClassVar[Mapping[str, str]] = {"conv": "conv", "full_attention": "attention"}
    norms: ClassVar[Mapping[str, str]] = {"before_mixer": "operator_norm", "before_mlp": "ffn_norm"}
    common: ClassVar[Mapping[str, Any]] = {}
    """Further arguments of ``DecoderConfig.read``."""
    width: ClassVar[int] = 3
    """Of convolutions, where config.json does not say."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = self.read_keys(config)
        width, bias = keys.count("conv_L_cache", self.width), keys.take("conv_bias", bool, False)
        if width < 2:
            raise CheckpointError(f"config.json: conv_L_cache is {width}, and a convolution sees two tokens at least")
        c = DecoderConfig.read(keys, norm_eps=1e-5, rope_theta=1e6, tied=True, **self.common)
        self.read_more(keys, c)
        keys.finish(type(self).__name__)
        listed = config.get("full_attn_idxs")
        kinds = read_kinds(config, ("layer_types",), c.layers, self.kinds) or [
            "attention" if listed is None or layer in listed else "conv" for layer in range(c.layers)
        ]
        rope = Rope(w, c.rope, max_len)
        local = rope if c.local_rope == c.rope else Rope(w, c.local_rope, max_len)

        def layer(i: int) -> HybridLayer:
            place = w / "model" / "layers" / i
            mixer = (
                self.make_attention(place / "self_attn", c, i, local if c.windows[i] else rope)
                if kinds[i] == "attention"
                else ShortConv(place.replicated() / "conv", c.hidden_size, width, i, bias=bias)
            )
            return HybridLayer(place, c, mixer, self.make_mlp(place / "mlp", c, i), norms=self.norms)

        super().__init__(
            w, (c.vocab_size, c.hidden_size), map(layer, range(c.layers)), eps=c.norm_eps, tied=c.tied,
            names=Names(norm="model.embedding_norm"),
        )  # fmt: skip

    def read_keys(self, config: Mapping[str, Any]) -> Keys:
        """config.json with the common names of its keys."""
        given = {**config, **{own: config[theirs] for own, theirs in _NAMES.items() if config.get(theirs) is not None}}
        keys = Keys(given)
        ignore(keys, *_NAMES.values(), "layer_types", *_UNUSED)
        return keys

    def read_more(self, keys: Keys, c: DecoderConfig) -> None:
        """Take what else the family has."""
        self.inner = _inner(keys, c.intermediate_size)

    def make_attention(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope) -> Attention:
        return Attention(w, c, layer, rope, qk_norm=True)

    def make_mlp(self, w: Weights, c: DecoderConfig, layer: int) -> nn.Module:
        return GatedMLP(w, c.hidden_size, self.inner, "silu")


class Lfm2Moe(Lfm2):
    """LFM2 with experts by the sigmoid of their logits behind some dense layers."""

    names = ((r"\.feed_forward\.expert_bias$", ".mlp.gate.expert_bias"), *Lfm2.names)

    def read_more(self, keys: Keys, c: DecoderConfig) -> None:
        dense = keys.take("num_dense_layers", int, 2)
        self.experts = Experts(
            layers=range(dense, c.layers),
            count=keys.count("num_experts", 32),
            top=keys.count("num_experts_per_tok", 4),
            size=keys.count("moe_intermediate_size", 1792),
            normalise=keys.take("norm_topk_prob", bool, True),
            scores="sigmoid",
            correction="expert_bias" if keys.take("use_expert_bias", bool, True) else None,
            scale=keys.take("routed_scaling_factor", float, 1.0),
        )

    def make_mlp(self, w: Weights, c: DecoderConfig, layer: int) -> nn.Module:
        return make_mlp(w, c, layer, self.experts)


def _inner(keys: Keys, size: int) -> int:
    """The inner features of MLPs, which the config may give before an adjustment."""
    adjust, multiple = keys.take("block_auto_adjust_ff_dim", bool, True), keys.count("block_multiple_of", 256)
    factor = keys.maybe("block_ffn_dim_multiplier", float)
    if not adjust:
        return size
    size = int(2 * size / 3)
    return size if factor is None else -(-int(factor * size) // multiple) * multiple
