"""Kimi Linear: layers of the delta rule by channels, and latent attention without positions in every fourth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from lsv_models.recurrent.delta.channel_mixer import ChannelMixer, ChannelSizes
from lsv_models.recurrent.hybrid import HybridLayer, read_kinds, with_defaults
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.stack import MIXTRAL, Stack
from lsv_models.sparse.experts import Experts, make_mlp
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.latent import LatentAttention, LatentConfig
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights

KINDS = {"linear_attention": "recurrent", "full_attention": "attention"}
_MLPS = {"dense": "dense", "sparse": "sparse"}
_NAMES = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
"""What config.json calls common keys."""


class LatentHybrid(Stack):
    """Layers of the delta rule by channels, latent attention in a few of them, and DeepSeek's experts."""

    correction: ClassVar[str] = "e_score_correction_bias"
    attention: ClassVar[type[LatentAttention]] = LatentAttention
    norm_eps: ClassVar[float] = 1e-5
    scale: ClassVar[float] = 2.446
    """On what experts add, where config.json does not say."""
    defaults: ClassVar[Mapping[str, Any]] = {"num_shared_experts": 1, "first_k_dense_replace": 1}
    """The family's values for what config.json may leave out."""
    rotates: ClassVar[bool] = True
    """Whether attention has positions."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(with_defaults(config, **self.defaults), _NAMES)
        ignore(keys, "head_dim", "layer_types", "mlp_layer_types", "num_nextn_predict_layers")
        latent = LatentConfig.read(keys, keys.count("hidden_size"), keys.count("num_attention_heads"))
        c = DecoderConfig.read(keys, norm_eps=self.norm_eps)
        keys.agree("moe_router_activation_func", "sigmoid")
        experts = dataclasses.replace(
            Experts.read_deepseek(keys, c.layers, keys.take("norm_topk_prob", bool, True), scale=self.scale),
            scores="sigmoid",
            correction=self.correction,
        )
        mlps = read_kinds(config, ("mlp_layer_types",), c.layers, _MLPS)
        if mlps:
            experts = dataclasses.replace(experts, layers=[i for i, kind in enumerate(mlps) if kind == "sparse"])
        sizes, kinds = self.read_sizes(keys, c), self.read_kinds(keys, c.layers)
        keys.finish(type(self).__name__)
        rope = Rope(w, latent.rope, max_len) if self.rotates else None

        def layer(i: int) -> HybridLayer:
            place = w / "model" / "layers" / i
            mixer: nn.Module = (
                self.attention(place / "self_attn", latent, i, rope)
                if kinds[i] == "attention"
                else ChannelMixer(place.replicated() / "self_attn", sizes, c, i)
            )
            return HybridLayer(place, c, mixer, make_mlp(place / "mlp", c, i, experts))

        layers = map(layer, range(c.layers))
        super().__init__(w, (c.vocab_size, c.hidden_size), layers, eps=c.norm_eps, tied=c.tied)
        # layers that predict further tokens follow those of the model
        self.ignores = (*self.ignores, rf"^model\.layers\.{c.layers}\.")

    def read_sizes(self, keys: Keys, c: DecoderConfig) -> ChannelSizes:
        raise NotImplementedError

    def read_kinds(self, keys: Keys, layers: int) -> list[str]:
        """The kind of each layer."""
        raise NotImplementedError


class KimiLinear(LatentHybrid):
    names = MIXTRAL
    rotates = False

    def read_sizes(self, keys: Keys, c: DecoderConfig) -> ChannelSizes:
        keys.agree("mla_use_nope", True)
        ignore(keys, "use_grouped_topk")
        inner = _read_inner(keys)
        heads = inner.count("num_heads", keys.count("linear_num_heads", 32))
        dim = inner.count("head_dim", keys.count("linear_head_dim", 128))
        conv = inner.count("short_conv_kernel_size", keys.count("linear_conv_kernel_dim", 4))
        inner.skip("full_attn_layers", "kda_layers")
        inner.finish("KimiLinear")
        return ChannelSizes(heads=heads, dim=dim, conv=conv, a_shape=(1, 1, heads, 1), narrow=True)

    def read_kinds(self, keys: Keys, layers: int) -> list[str]:
        known = read_kinds(keys.json, ("layer_types",), layers, KINDS)
        full = _read_inner(keys).maybe("full_attn_layers", list)
        if known is None and full is not None:
            # counted from one
            return ["attention" if layer + 1 in full else "recurrent" for layer in range(layers)]
        return known or ["attention" if layer and layer % 4 == 0 else "recurrent" for layer in range(layers)]


def _read_inner(keys: Keys) -> Keys:
    """The object that the first checkpoints have their numbers of recurrent layers in."""
    return Keys(keys.maybe("linear_attn_config", dict) or {})
