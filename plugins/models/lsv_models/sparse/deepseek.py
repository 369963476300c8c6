"""DeepSeek-V2, -V3 and R1, Kimi-K2: latent attention, and routed beside shared experts behind some dense layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from lsv.offers import OpSpec
from lsv_base.errors import CheckpointError
from lsv_models.sparse.experts import Experts, make_mlp
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import Decoder, DecoderLayer
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.latent import LatentAttention, LatentConfig
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.quantizer import joint_format


class DeepseekLayer(DecoderLayer):
    """The pre-norm block around latent attention."""

    op = "layer.latent"

    def __init__(
        self, w: Weights, c: DecoderConfig, latent: LatentConfig, layer: int, rope: Rope, experts: Experts
    ) -> None:
        Bindable.__init__(self)
        self.before_attn = RMSNorm(w / "input_layernorm", c.hidden_size, c.norm_eps)
        self.attn = LatentAttention(w / "self_attn", latent, layer, rope)
        self.before_mlp = RMSNorm(w / "post_attention_layernorm", c.hidden_size, c.norm_eps)
        self.mlp = make_mlp(w / "mlp", c, layer, experts)

    def spec(self) -> OpSpec:
        attn, mlp = self.attn.spec(), self.mlp.spec()
        format = joint_format(attn.format, mlp.format)
        return OpSpec(self.op, attn.dtype, format, {**mlp.shape, **attn.shape}, mlp.flags | {mlp.op})

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), step)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class DeepseekV3(Decoder):
    """Experts by the sigmoid of their logits, with a learned correction, from the best groups."""

    experts: ClassVar[Mapping[str, Any]] = {"scores": "sigmoid", "correction": "e_score_correction_bias"}

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        keys.maybe("head_dim", int)  # what transformers calls it is the size of the rotated features
        latent = LatentConfig.read(keys, keys.count("hidden_size"), keys.count("num_attention_heads"))
        c = DecoderConfig.read(keys)
        experts = dataclasses.replace(self.read_experts(keys, c), **self.experts)
        for name in ("num_nextn_predict_layers", "num_mtp_layers"):
            keys.maybe(name, int)
        keys.finish(type(self).__name__)
        rope = Rope(w, latent.rope, max_len)
        places = w / "model" / "layers"
        layers = (DeepseekLayer(places / i, c, latent, i, rope, experts) for i in range(c.layers))
        super().__init__(w, c, layers)
        # layers that predict further tokens follow those of the model
        self.ignores = (*self.ignores, rf"^model\.layers\.{c.layers}\.")

    @staticmethod
    def read_experts(keys: Keys, c: DecoderConfig) -> Experts:
        keys.agree("scoring_func", "sigmoid")
        keys.agree("topk_method", "noaux_tc")
        normalise = keys.take("norm_topk_prob", bool, True)
        return Experts.read_deepseek(keys, c.layers, normalise, scale=2.5)


class Glm4MoeLite(DeepseekV3):
    """The same, with a list of which layers have experts (GLM-4.7-Flash)."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "rms_norm_eps": 1e-5, "routed_scaling_factor": 1.8, "qk_nope_head_dim": 192, "v_head_dim": 256,
    }  # fmt: skip
    """The family's values for what config.json may leave out."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__(w, {**self.defaults, **config}, max_len)

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        kinds, first = keys.maybe("mlp_layer_types", list), keys.take("first_k_dense_replace", int, 1)
        given = ["dense"] * first + ["sparse"] * (c.layers - first) if kinds is None else kinds
        if len(given) != c.layers or not all(kind in ("dense", "sparse") for kind in given):
            raise CheckpointError(
                f"config.json: mlp_layer_types must list dense or sparse for {c.layers} layers, got {given!r:.100}"
            )
        layers = [layer for layer, kind in enumerate(given) if kind == "sparse"]
        return dataclasses.replace(super().read_experts(keys, c), layers=layers)


class DeepseekV2(DeepseekV3):
    """Experts by softmax over their logits, in some sizes from the best groups alone."""

    experts = {"scores": "softmax"}

    @staticmethod
    def read_experts(keys: Keys, c: DecoderConfig) -> Experts:
        keys.agree("scoring_func", "softmax")
        keys.agree("norm_topk_prob", False)
        grouped = keys.take("topk_method", str, "greedy") == "group_limited_greedy"
        found = Experts.read_deepseek(keys, c.layers, False, scale=1.0)
        return found if grouped else dataclasses.replace(found, groups=1, chosen_groups=1)
