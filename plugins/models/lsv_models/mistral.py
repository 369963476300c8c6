"""Mistral: Llama with a sliding window in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv.nn.config import DecoderConfig
from lsv.nn.decoder import Decoder
from lsv.nn.keys import Keys
from lsv.nn.rope import Rope
from lsv.weights.place import Weights
from lsv_models.llama import LlamaLayer


class Mistral(Decoder):
    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        c = DecoderConfig.read(keys)
        keys.finish("Mistral")
        rope = Rope(w, c.rope, max_len)
        super().__init__(w, c, (LlamaLayer(w / "model" / "layers" / i, c, i, rope) for i in range(c.layers)))
