"""MiniCPM 1 and 4, dense: Llama with multipliers on embeddings, residuals and what the head reads."""

from __future__ import annotations

import math
from dataclasses import replace

from lsv.nn.config import DecoderConfig
from lsv.nn.decoder import DenseDecoder
from lsv.nn.keys import Keys
from lsv_models.rms.blocks import ScaledLayer


class MiniCPM(DenseDecoder):
    layer = ScaledLayer
    defaults = {"tied": True}

    def read(self, keys: Keys) -> DecoderConfig:
        c = super().read(keys)
        keys.skip("mup_denominator")  # for speculative heads
        return replace(
            c,
            embedding_multiplier=keys.take("scale_emb", float, 1.0),
            residual_multiplier=keys.take("scale_depth", float, 1.0) / math.sqrt(c.layers),
            logit_divisor=c.hidden_size / keys.take("dim_model_base", float, 1.0),
        )
