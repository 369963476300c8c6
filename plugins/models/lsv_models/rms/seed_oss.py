"""Seed-OSS: Llama with biases on q, k and v, and with heads of 128."""

from __future__ import annotations

from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.decoder import DenseDecoder


class SeedOss(DenseDecoder):
    layer = LlamaLayer
    defaults = {"head_dim": 128, "attention_bias": True}
