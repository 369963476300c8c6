"""Granite, dense: Llama with multipliers on embeddings, attention, residuals and logits."""

from __future__ import annotations

from dataclasses import replace

from lsv_models.rms.blocks import ScaledLayer
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.keys import Keys


def read_multipliers(keys: Keys, c: DecoderConfig) -> DecoderConfig:
    """With what all models of the line multiply by."""
    return replace(
        c,
        attention_scale=keys.take("attention_multiplier", float, 1.0),
        embedding_multiplier=keys.take("embedding_multiplier", float, 1.0),
        residual_multiplier=keys.take("residual_multiplier", float, 1.0),
        logit_divisor=keys.take("logits_scaling", float, 1.0),
    )


class Granite(DenseDecoder):
    layer = ScaledLayer

    def read(self, keys: Keys) -> DecoderConfig:
        return read_multipliers(keys, super().read(keys))
