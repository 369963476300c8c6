"""SmolLM 3: Llama, with every fourth layer without positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lsv_base.errors import CheckpointError
from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights


class SmolLM3(DenseDecoder):
    layer = LlamaLayer
    defaults = {"tied": True, "rope_theta": 2e6, "windows": True}

    def read(self, keys: Keys) -> DecoderConfig:
        c = super().read(keys)
        every, given = keys.count("no_rope_layer_interval", 4), keys.maybe("no_rope_layers", list)
        rotated = given if given is not None else [(layer + 1) % every != 0 for layer in range(c.layers)]
        if len(rotated) != c.layers:
            raise CheckpointError(f"config.json: no_rope_layers must have {c.layers} entries, got {len(rotated)}")
        self.rotated = [bool(one) for one in rotated]
        windowed = keys.take("use_sliding_window", bool, False)
        if keys.json.get("layer_types") is not None or not windowed:
            return c if windowed else replace(c, windows=(None,) * c.layers)
        pairs = zip(c.windows, self.rotated, strict=True)
        return replace(c, windows=tuple(None if rotated else window for window, rotated in pairs))

    def make_ropes(self, w: Weights, c: DecoderConfig, max_len: int) -> Sequence[Rope | None]:
        ropes = super().make_ropes(w, c, max_len)
        return [rope if rotated else None for rope, rotated in zip(ropes, self.rotated, strict=True)]
