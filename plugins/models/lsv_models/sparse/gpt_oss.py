"""gpt-oss: attention sinks, windows in every other layer, biased experts with a clamped gate, mxfp4 as stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_models.llama import LlamaLayer
from lsv_models.sparse.attention import SinkAttention
from lsv_models.sparse.decoder import SparseDecoder
from lsv_models.sparse.experts import Experts
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import ClampedGate, GatedMLP
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.routers import Router
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.stacks import Stack

_FUSED = ("gate_proj", "up_proj")
_ROPE = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
"""That of a file that names none."""


class ClampedExpert(GatedMLP):
    op = "gated_mlp.clamped"

    def __init__(self, w: Weights, c: DecoderConfig, alpha: float, limit: float) -> None:
        super().__init__(w, c.hidden_size, c.intermediate_size, "silu", bias=True, reduce=False)
        self.act = ClampedGate(w.dtype, alpha, limit)


class GptOssLayer(LlamaLayer):
    attention = SinkAttention


class GptOss(SparseDecoder):
    layer = GptOssLayer
    common = {"windows": True}
    stacks = (
        Stack(r"(.*\.experts)\.gate_up_proj", tuple(f"{part}.weight" for part in _FUSED), True, True),
        Stack(r"(.*\.experts)\.down_proj", ("down_proj.weight",), transposed=True),
        *(
            stack
            for suffix in ("bias", "blocks", "scales")
            for stack in (
                Stack(rf"(.*\.experts)\.gate_up_proj_{suffix}", tuple(f"{p}.{suffix}" for p in _FUSED), False, True),
                Stack(rf"(.*\.experts)\.down_proj_{suffix}", (f"down_proj.{suffix}",)),
            )
        ),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        layers = config.get("num_hidden_layers")
        kinds = ("sliding_attention", "full_attention")
        self.defaults = {  # type: ignore[misc]
            "attention_bias": True, "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "sliding_window": 128,
            "layer_types": [kinds[layer % 2] for layer in range(layers if isinstance(layers, int) else 36)],
            "rope_parameters": _ROPE if config.get("rope_scaling") is None else {},
        }  # fmt: skip
        super().__init__(w, config, max_len)

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        top = keys.count("num_experts_per_tok", 4)
        keys.agree("experts_per_token", top)
        keys.agree("hidden_act", "silu")
        keys.maybe("initial_context_length", int)
        count = keys.count("num_local_experts", 128)
        return Experts(layers=range(c.layers), count=count, top=top, size=c.intermediate_size, normalise=True)

    def read_more(self, keys: Keys, c: DecoderConfig) -> None:
        self.alpha = keys.take("swiglu_alpha", float, 1.702)
        self.limit = keys.take("swiglu_limit", float, 7.0)

    def make_mlp(self, w: Weights, c: DecoderConfig, layer: int, experts: Experts) -> Bindable:
        router = Router(w / "router", c.hidden_size, experts.count, experts.top, normalise=True, bias=True)
        return MoE(
            w, c.hidden_size, c.intermediate_size, c.activation, experts=experts.count, top=experts.top, router=router,
            expert=lambda place: ClampedExpert(place, c, self.alpha, self.limit),
        )  # fmt: skip
