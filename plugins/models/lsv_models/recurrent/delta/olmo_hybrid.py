"""OLMo Hybrid: layers of the delta rule with norms before, and OLMo's attention with norms behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from lsv_models.recurrent.delta.mixer import DeltaMixer, DeltaSizes
from lsv_models.recurrent.delta.qwen3_next import KINDS
from lsv_models.recurrent.hybrid import AFTER, BEFORE, HybridLayer, read_kinds
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.stack import Stack
from lsv_models.rms.blocks import WideNormAttention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.recurrent.conv import CausalConv
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Part, Weights

_TRAINING = ("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor")
_NORM_EPS = 1e-5
"""Of gated norms, whatever the model's own."""


class SplitDeltaMixer(DeltaMixer):
    """One with a projection and a convolution for each of q, k and v."""

    def _declare(self, w: Weights, sizes: DeltaSizes, hidden: int) -> None:
        self.widths = {"q": sizes.keys, "k": sizes.keys, "v": sizes.values}
        gates = {"g": sizes.values, "b": sizes.heads, "a": sizes.heads}
        widths = {**self.widths, **gates}
        self.sections = (sum(self.widths.values()), *gates.values())
        self.project = Column(w, [Part(f"{name}_proj", size, 0, size) for name, size in widths.items()], hidden)

    def _make_conv(self, w: Weights, sizes: DeltaSizes, activation: str) -> CausalConv:
        parts = {f"{name}_conv1d": size for name, size in self.widths.items()}
        return CausalConv(w, self.sections[0], sizes.conv, activation=activation, bias=False, parts=parts)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.project(x).split(self.sections, dim=-1)  # type: ignore[no-any-return]


class OlmoHybrid(Stack):
    names = (
        (r"\.linear_attn\.o_norm\.", ".linear_attn.norm."),
        (r"\.linear_attn\.o_proj\.", ".linear_attn.out_proj."),
        (r"\.attention_layer_norm\.", ".input_layernorm."),
        (r"\.feedforward_layer_norm\.", ".post_attention_layernorm."),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        ignore(keys, "layer_types", *_TRAINING)
        c = DecoderConfig.read(keys)
        key_dim = config.get("linear_key_head_dim") or int(
            0.75 * c.hidden_size / (config.get("linear_num_key_heads") or c.heads)
        )
        sizes = DeltaSizes.read(keys, heads=c.heads, key_heads=c.heads, key_dim=key_dim, dim=2 * key_dim)
        most = 2.0 if keys.take("linear_allow_neg_eigval", bool, True) else 1.0
        sizes = dataclasses.replace(sizes, most=most, norm_eps=_NORM_EPS)
        keys.finish("OlmoHybrid")
        kinds = read_kinds(config, ("layer_types",), c.layers, KINDS) or [
            "recurrent" if (layer + 1) % 4 else "attention" for layer in range(c.layers)
        ]
        rope = Rope(w, c.rope, max_len) if _rotates(config) else None

        def layer(i: int) -> HybridLayer:
            place, bias = w / "model" / "layers" / i, c.attention_bias
            mlp = GatedMLP(place / "mlp", c.hidden_size, c.intermediate_size, c.activation)
            if kinds[i] == "recurrent":
                return HybridLayer(
                    place, c, SplitDeltaMixer(place.replicated() / "linear_attn", sizes, c, i), mlp, norms=BEFORE
                )
            mixer = WideNormAttention(place / "self_attn", c, i, rope, qk_norm=True, qkv_bias=bias, out_bias=bias)
            return HybridLayer(place, c, mixer, mlp, norms=AFTER)

        layers = map(layer, range(c.layers))
        super().__init__(w, (c.vocab_size, c.hidden_size), layers, eps=c.norm_eps, tied=c.tied)


def _rotates(config: Mapping[str, Any]) -> bool:
    """Whether attention has positions: a base that is null takes them away, one that is not there is the usual one."""
    given = config.get("rope_parameters") or config
    return "rope_theta" not in given or given["rope_theta"] is not None
