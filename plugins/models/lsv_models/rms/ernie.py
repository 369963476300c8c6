"""ERNIE 4.5, dense: Llama that rotates neighbouring pairs."""

from __future__ import annotations

from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.rope import PairRope


class Ernie45(DenseDecoder):
    layer = LlamaLayer
    rope = PairRope
    keys = {"attention_bias": "use_bias", "mlp_bias": "use_bias"}
    defaults = {"head_dim": 128, "norm_eps": 1e-5, "tied": True, "rope_theta": 5e5}
