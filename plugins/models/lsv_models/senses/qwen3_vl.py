"""Qwen3-VL, dense and sparse: a tower whose features go into the decoder's first layers, too, and a Qwen3.

Source: Qwen Team 2025 (Qwen3-VL).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from lsv_base.errors import CheckpointError
from lsv_models.qwen2_vl import Qwen2VL
from lsv_models.qwen3 import Qwen3Layer
from lsv_models.qwen3_moe import Experts, Qwen3MoeLayer
from lsv_models.senses.towers.deepstack import DeepEncoder, DeepVisionConfig
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.model import Encoder
from lsv_runtime.nn.rope import InterleavedMRope, Rope
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.stacks import Stack


class Qwen3VL(Qwen2VL):
    tower: ClassVar[type[DeepEncoder]] = DeepEncoder
    layer = Qwen3Layer
    rope = InterleavedMRope
    defaults: ClassVar[Mapping[str, Any]] = {"rope_theta": 5e5, "head_dim": 128}

    def make_encoder(self, w: Weights, keys: Keys, c: DecoderConfig) -> Encoder:
        vision = DeepVisionConfig.of(keys.take("vision_config", dict), type(self).__name__)
        if vision.outputs != c.hidden_size or len(vision.deep) > c.layers:
            raise CheckpointError(
                f"config.json: the tower makes features of {vision.outputs} numbers for the first {len(vision.deep)} "
                f"layers, but the language model has {c.layers} layers of {c.hidden_size}"
            )
        return self.tower(w / "visual", vision)


class Qwen3VLMoe(Qwen3VL):
    defaults = {**Qwen3VL.defaults, "head_dim": None}

    def read_text(self, keys: Keys) -> DecoderConfig:
        keys.agree("norm_topk_prob", True)
        self.experts = dataclasses.replace(Experts.read(keys), normalise=True)
        c = super().read_text(keys)
        # published ones have the inputs first, those that transformers saves the outputs
        self.stacks = (
            Stack(
                r"(.*\.experts)\.gate_up_proj", ("gate_proj.weight", "up_proj.weight"), transposed=True,
                inputs=c.hidden_size, beside=("down_proj", self.experts.size),
            ),
            Stack(
                r"(.*\.experts)\.down_proj", ("down_proj.weight",), transposed=True,
                inputs=self.experts.size, beside=("gate_up_proj", c.hidden_size),
            ),
        )  # fmt: skip
        return c

    def make_layer(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope) -> DecoderLayer:
        return Qwen3MoeLayer(w, c, layer, rope, self.experts)
