"""Phi-3, Phi-3.5 and Phi-4: Llama with q, k and v in one tensor, and gate and up in another."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.attention import Heads
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.keys import Keys


class Phi3Layer(LlamaLayer):
    fused = partial(Heads.stacked, name="qkv_proj")
    mlp_names = ("gate_up_proj", "gate_up_proj", "down_proj")
    qkv_bias = out_bias = mlp_bias = False


class Phi3(DenseDecoder):
    layer = Phi3Layer
    defaults = {"norm_eps": 1e-5, "windows": True, "rotary_fraction": 1.0}

    def read(self, keys: Keys) -> DecoderConfig:
        keys.agree("full_attn_mod", 1)
        keys.agree("interpolate_factor", 1)
        return super().read(keys)


def with_magnitude(config: Mapping[str, Any], max_len: int) -> Mapping[str, Any]:
    """The rope's ``short_mscale`` or ``long_mscale``, as the factor on cosine and sine that they are."""
    changed = dict(config)
    for key in ("rope_scaling", "rope_parameters"):
        given = config.get(key)
        if isinstance(given, Mapping) and ("long_mscale" in given or "short_mscale" in given):
            rope = {name: value for name, value in given.items() if name not in ("long_mscale", "short_mscale")}
            original = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
            long = isinstance(original, int) and max_len > original
            magnitude = given.get("long_mscale" if long else "short_mscale")
            changed[key] = rope if magnitude is None else {**rope, "attention_factor": magnitude}
    return changed
