"""SeamlessM4T (Seamless Communication 2023), the half of it that translates text: NLLB's layers under other names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lsv_models.seq2seq.mbart import M2M100
from lsv_runtime.weights.naming import substitute
from lsv_runtime.weights.place import Weights

_NAMES = (
    (r"^text_(en|de)coder\.", r"model.\1coder."),
    (r"\.cross_attention", ".encoder_attn"),
    (r"\.ffn_layer_norm\.", ".final_layer_norm."),
    (r"\.ffn\.", "."),
)
_OTHERS = re.compile(
    r"(speech|t2u|vocoder|unit|char|upsample|resblock|var|variance|adaptor|conv|feature|rotary|spkr|lang|left|right"
    r"|leaky|sampling)_.*|position_embeddings_type|num_(adapter|conv)_.*|add_adapter|max_source_positions"
    r"|layer_norm_eps|max_new_tokens"
)
"""Keys of what hears and speaks. The norms of text have an epsilon of their own."""


class SeamlessText(M2M100):
    offset = 1
    ignores = (*M2M100.ignores, r"^(speech_encoder|t2u_model|vocoder)\.")

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        own = {key: value for key, value in config.items() if not _OTHERS.fullmatch(key)}
        super().__init__(w, {**own, "d_model": config.get("hidden_size")}, max_len)

    def rename(self, name: str) -> str:
        return super().rename(substitute(name, _NAMES))
