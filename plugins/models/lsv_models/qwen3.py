"""Qwen3, dense: Llama with a norm on every head of q and k."""

from __future__ import annotations

from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.decoder import DenseDecoder


class Qwen3Layer(LlamaLayer):
    qk_norm = True
    mlp_bias = False


class Qwen3(DenseDecoder):
    layer = Qwen3Layer
    defaults = {"head_dim": 128, "first_window": 28}
