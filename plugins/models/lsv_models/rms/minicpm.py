"""MiniCPM 1, 3 and 4, dense: Llama with multipliers on embeddings, residuals and what the head reads; MiniCPM 3 has
latent attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from lsv_models.rms.blocks import ScaledLayer
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.latent import LatentAttention, LatentConfig
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights


class MiniCPM(DenseDecoder):
    layer: ClassVar[type[ScaledLayer]] = ScaledLayer
    defaults: ClassVar[Mapping[str, Any]] = {"tied": True}

    def read(self, keys: Keys) -> DecoderConfig:
        c = super().read(keys)
        keys.skip("mup_denominator")  # for speculative heads
        return replace(
            c,
            embedding_multiplier=keys.take("scale_emb", float, 1.0),
            residual_multiplier=keys.take("scale_depth", float, 1.0) / math.sqrt(c.layers),
            logit_divisor=c.hidden_size / keys.take("dim_model_base", float, 1.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentDecoderConfig(DecoderConfig):
    """The numbers of a decoder with latent attention."""

    latent: LatentConfig


class LatentScaledLayer(ScaledLayer):
    """With latent attention: x [T, hidden] -> [T, hidden]."""

    def make_attention(
        self, w: Weights, c: DecoderConfig, layer: int, rope: Rope | None, kind: type[Attention], **more: Any
    ) -> LatentAttention:
        assert isinstance(c, LatentDecoderConfig)
        return LatentAttention(w, c.latent, layer, rope)


class MiniCPM3(MiniCPM):
    layer = LatentScaledLayer
    defaults: ClassVar[Mapping[str, Any]] = {"tied": True, "norm_eps": 1e-5}
    sizes: ClassVar[Mapping[str, Any]] = {
        "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "scale_emb": 12.0,
        "rope_interleave": False,
    }  # fmt: skip
    """What config.json may leave out."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__(w, {**self.sizes, **config, **_resolve_nulls(config)}, max_len)

    def read(self, keys: Keys) -> DecoderConfig:
        keys.maybe("head_dim", int)  # what transformers calls it is the size of the rotated features
        c = super().read(keys)
        latent = LatentConfig.read(keys, c.hidden_size, c.heads)
        own = {name: getattr(c, name) for name in DecoderConfig.__dataclass_fields__}
        return LatentDecoderConfig(**{**own, "rope": latent.rope, "local_rope": latent.rope}, latent=latent)


def _resolve_nulls(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is null or left out where that stands for a number that others make up."""
    keys = Keys(config)
    layers, hidden = keys.layers("num_hidden_layers"), keys.count("hidden_size")
    made = {
        "v_head_dim": hidden // keys.count("num_attention_heads"),
        "scale_depth": math.sqrt(layers) if "scale_depth" in config else 1.4,
        "dim_model_base": hidden if "dim_model_base" in config else 256,
    }
    return {name: number for name, number in made.items() if config.get(name) is None}
