"""Llama 4, its text half: experts whose inputs are weighed, layers that see one chunk, and others without positions."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_models.llama import LlamaLayer
from lsv_models.sparse.decoder import SparseDecoder
from lsv_models.sparse.experts import Experts
from lsv_runtime.nn.attention import Attention, Sizes
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.moe import SharedMoE, WeighedInputMoE
from lsv_runtime.nn.rope import PairRope, Rope
from lsv_runtime.nn.routers import ScoredRouter
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.stacks import Stack


class Llama4Attention(Attention):
    """With a rope, neighbouring features rotate, and heads may be normalised behind it, without a weight. Without one,
    queries grow with the position where ``growth`` = (scale, tokens of a step) says so.
    """

    op = "attention.llama4"

    def __init__(self, w: Weights, c: Sizes, layer: int, rope: Rope | None, **given: Any) -> None:
        super().__init__(w, c, layer, rope, **{**given, "qk_norm": False})
        self.norm_eps: float | None = None
        self.growth: tuple[float, float] | None = None

    def turn(self, qk: torch.Tensor, step: Step) -> torch.Tensor:
        if self.rope is not None:
            qk = self.rope(qk, step.positions[0])
            return qk if self.norm_eps is None else functional.rms_norm(qk, qk.shape[-1:], eps=self.norm_eps)
        if self.growth is None:
            return qk
        scale, tokens = self.growth
        factors = torch.log1p(((step.positions[0].float() + 1.0) / tokens).floor()) * scale + 1.0
        queries, keys = qk.split((self.heads, self.kv_heads), dim=1)
        return torch.cat(((queries * factors[:, None, None]).to(qk.dtype), keys), dim=1)


class Llama4Layer(LlamaLayer):
    attention = Llama4Attention


class Llama4(SparseDecoder):
    layer = Llama4Layer
    rope = PairRope
    mlp = "feed_forward"
    defaults = {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "head_dim": 128}
    stacks = (
        Stack(r"(.*\.experts)\.gate_up_proj", ("gate_proj.weight", "up_proj.weight"), transposed=True),
        Stack(r"(.*\.experts)\.down_proj", ("down_proj.weight",), transposed=True),
    )

    def __init__(self, w: Weights, config: dict[str, Any], max_len: int) -> None:
        self.longest = max_len
        # which layers see chunks follows from which have positions; the rest of the key is for sliding windows
        kinds = config.get("layer_types")
        self.kinds = kinds if isinstance(kinds, list) else None
        super().__init__(w, {key: value for key, value in config.items() if key != "layer_types"}, max_len)

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        step = keys.take("interleave_moe_layer_step", int, 1)
        sparse = keys.maybe("moe_layers", list)
        self.dense_size = keys.count("intermediate_size_mlp", 16384)
        return Experts(
            layers=range(step - 1, c.layers, step) if sparse is None else sparse,
            count=keys.count("num_local_experts", 16),
            top=keys.count("num_experts_per_tok", 1),
            size=c.intermediate_size,
            normalise=False,
        )

    def read_more(self, keys: Keys, c: DecoderConfig) -> None:
        every = keys.count("no_rope_layer_interval", 4)
        given = keys.maybe("no_rope_layers", list) or [int((layer + 1) % every != 0) for layer in range(c.layers)]
        if len(given) != c.layers:
            raise CheckpointError(f"config.json: no_rope_layers has {len(given)} entries for {c.layers} layers")
        self.rotated = [bool(one) for one in given]
        self.norm_eps = c.norm_eps if keys.take("use_qk_norm", bool, True) else None
        scale, tokens = keys.take("attn_scale", float, 0.1), keys.take("floor_scale", float, 8192.0)
        # files have a number or a truth value
        tuned = keys.maybe("attn_temperature_tuning", object)
        self.growth = (scale, tokens) if tuned is None or tuned else None
        own = ["chunked_attention" if rotated else "full_attention" for rotated in self.rotated]
        kinds = own if self.kinds is None else self.kinds
        if len(kinds) != c.layers:
            raise CheckpointError(f"config.json: layer_types has {len(kinds)} entries for {c.layers} layers")
        chunk = keys.maybe("attention_chunk_size", int)
        if chunk is not None and chunk < 1:
            raise CheckpointError(f"config.json: attention_chunk_size must be positive, got {chunk}")
        longer = chunk is not None and self.longest > chunk
        self.chunks = [chunk if longer and kind == "chunked_attention" else None for kind in kinds]

    def make_mlp(self, w: Weights, c: DecoderConfig, layer: int, experts: Experts) -> Bindable:
        if layer not in experts.layers:
            return GatedMLP(w, c.hidden_size, self.dense_size, c.activation)
        count, top = experts.count, experts.top
        router = ScoredRouter(w / "router", c.hidden_size, count, top, normalise=False, scores="sigmoid")
        routed = WeighedInputMoE(w, c.hidden_size, experts.size, c.activation, experts=count, top=top, router=router)
        return SharedMoE(routed, GatedMLP(w / "shared_expert", c.hidden_size, experts.size, c.activation))

    def make_layer(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, mlp: Bindable) -> DecoderLayer:
        made = Llama4Layer(w, c, layer, rope if self.rotated[layer] else None, mlp)
        attn: Any = made.attn
        attn.norm_eps, attn.growth = self.norm_eps, self.growth
        attn.layer = dataclasses.replace(attn.layer, chunk=self.chunks[layer])
        return made
