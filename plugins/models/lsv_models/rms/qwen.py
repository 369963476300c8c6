"""Qwen 1: Llama under names of its own, with q, k and v in one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from lsv.errors import ConfigError
from lsv.nn.attention import Heads
from lsv.nn.config import DecoderConfig
from lsv.nn.decoder import DenseDecoder
from lsv.nn.keys import Keys
from lsv.weights.place import Weights
from lsv_models.llama import LlamaLayer


class QWenLayer(LlamaLayer):
    fused = partial(Heads.stacked, name="c_attn")
    qkv_bias = True
    out_bias = mlp_bias = False


class QWen(DenseDecoder):
    layer = QWenLayer
    keys = {"rms_norm_eps": "layer_norm_epsilon", "rope_theta": "rotary_emb_base", "head_dim": "kv_channels",
            "partial_rotary_factor": "rotary_pct"}  # fmt: skip
    defaults = {"rotary_fraction": 1.0}
    prefixes = (
        ("transformer.h.*.ln_1", "model.layers.*.input_layernorm"),
        ("transformer.h.*.ln_2", "model.layers.*.post_attention_layernorm"),
        ("transformer.h.*.attn.c_proj", "model.layers.*.self_attn.o_proj"),
        ("transformer.h.*.attn", "model.layers.*.self_attn"),
        ("transformer.h.*.mlp.w1", "model.layers.*.mlp.up_proj"),
        ("transformer.h.*.mlp.w2", "model.layers.*.mlp.gate_proj"),
        ("transformer.h.*.mlp.c_proj", "model.layers.*.mlp.down_proj"),
        ("transformer.wte", "model.embed_tokens"),
        ("transformer.ln_f", "model.norm"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        """Raises ``ConfigError`` for inputs beyond the trained length, where attention would be another."""
        trained, stretched = config.get("seq_length"), config.get("use_dynamic_ntk") or config.get("use_logn_attn")
        if stretched and isinstance(trained, int) and max_len > trained:
            raise ConfigError(
                f"Qwen 1 scales its attention beyond {trained} tokens (use_dynamic_ntk, use_logn_attn), which is not "
                f"supported: use --max-model-len {trained}",
                param="max_model_len",
            )
        super().__init__(w, config, max_len)

    def read(self, keys: Keys) -> DecoderConfig:
        c = super().read(keys)
        keys.agree("no_bias", True)
        keys.agree("scale_attn_weights", True)
        keys.skip("seq_length", "use_dynamic_ntk", "use_logn_attn")
        # gate and up together
        return replace(c, intermediate_size=c.intermediate_size // 2)
