"""Qwen2 and Qwen2.5: Llama with biases on q, k and v."""

from __future__ import annotations

from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.decoder import DenseDecoder


class Qwen2Layer(LlamaLayer):
    qkv_bias = True
    out_bias = mlp_bias = False


class Qwen2(DenseDecoder):
    layer = Qwen2Layer
    defaults = {"first_window": 28}
