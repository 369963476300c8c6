"""Families with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_base.errors import CheckpointError
from lsv_quant.gguf.architecture import (
    BESIDE_TOWERS,
    BIASES,
    EXPERTS,
    LOCAL_EXPERTS,
    WINDOW,
    Architecture,
    Config,
    Key,
    ignored,
)

_FFN = {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"}
_SOFTMAX, _SIGMOID = 1, 2
"""llama.cpp's ``llama_expert_gating_func_type``; files of before there were several have none, or 0."""


def _scored_by(own: int) -> Key:
    """What the family makes of a router's logits anyway."""

    def rule(value: Any, config: Config) -> Mapping[str, Any]:
        if value not in (0, own):
            raise CheckpointError(
                f"expert_gating_func is {value}, and {config['architectures'][0]} scores experts by {own} "
                f"({_SOFTMAX} is softmax, {_SIGMOID} sigmoid)",
                param="model",
            )
        return {}

    return rule, int


def _shared(place: str) -> Mapping[str, str]:
    """The expert that all tokens go through."""
    return {f"{name}_shexp": f"{place}.{own}" for name, own in _FFN.items()}


def _both(value: Any, config: Config) -> Mapping[str, Any]:
    """YaRN's magnitude, of which files have a tenth."""
    scaling = config.get("rope_scaling", {})
    return {"rope_scaling": {**scaling, "mscale": 10 * value, "mscale_all_dim": 10 * value}} if scaling else {}


def _grouped(value: Any, config: Config) -> Mapping[str, Any]:
    return {"n_group": value, "topk_method": "group_limited_greedy" if value > 1 else "greedy"}


def _normed(value: Any, config: Config) -> Mapping[str, Any]:
    """Llama 4's larger model, of 128 experts, does not normalise heads."""
    return {"num_local_experts": value, "use_qk_norm": value != 128}


_ROUTED: Mapping[str, Key] = {
    **EXPERTS, "expert_count": ("n_routed_experts", int), "expert_shared_count": ("n_shared_experts", int),
    "expert_weights_scale": ("routed_scaling_factor", float), "expert_group_count": ("n_group", int),
    "leading_dense_block_count": ("first_k_dense_replace", int), "expert_group_used_count": ("topk_group", int),
    "expert_gating_func": _scored_by(_SIGMOID), "expert_shared_feed_forward_length": (ignored, int),
}  # fmt: skip
_NORMALISED: Mapping[str, Key] = {**_ROUTED, "expert_weights_norm": ("norm_topk_prob", bool)}
_CORRECTION = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
_DEEPSEEK_PARTS = {
    **_shared("mlp.shared_experts"), "attn_q_a": "self_attn.q_a_proj", "attn_q_b": "self_attn.q_b_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm", "attn_kv_b": "self_attn.kv_b_proj",
}  # fmt: skip
_YARN: Mapping[str, Key] = {"rope.scaling.yarn_log_multiplier": (_both, float)}
_GRANITE = {
    "attention.scale": ("attention_multiplier", float), "embedding_scale": ("embedding_multiplier", float),
    "residual_scale": ("residual_multiplier", float), "logit_scale": ("logits_scaling", float),
}  # fmt: skip

SPARSE: Mapping[str, tuple[Architecture, ...]] = {
    "qwen2moe": (
        Architecture(
            name="Qwen2MoeForCausalLM", model_type="qwen2_moe", there={},
            parts={**_shared("mlp.shared_expert"), "ffn_gate_inp_shexp": "mlp.shared_expert_gate"},
            single_rows=frozenset(("ffn_gate_inp_shexp.weight",)),
            keys={
                **EXPERTS, "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", int),
            },
        ),
    ),
    "qwen3moe": (
        Architecture(
            name="Qwen3MoeForCausalLM", model_type="qwen3_moe", keys=EXPERTS, fixed={"norm_topk_prob": True},
        ),
    ),
    "qwen3vlmoe": (
        Architecture(
            name="Qwen3MoeForCausalLM", model_type="qwen3_moe", keys={**EXPERTS, **BESIDE_TOWERS},
            fixed={"norm_topk_prob": True},
        ),
    ),
    "olmoe": (
        Architecture(
            name="OlmoeForCausalLM", model_type="olmoe",
            keys={**EXPERTS, "expert_feed_forward_length": (ignored, int)},
        ),
    ),
    "deepseek2": (
        Architecture(
            name="DeepseekV3ForCausalLM", model_type="deepseek_v3", latent=True, when="exp_probs_b.bias", there={},
            parts={**_DEEPSEEK_PARTS, **_CORRECTION}, keys={**_NORMALISED, **_YARN}, fixed={"norm_topk_prob": False},
        ),
        Architecture(
            name="DeepseekV2ForCausalLM", model_type="deepseek_v2", latent=True, there={}, parts=_DEEPSEEK_PARTS,
            keys={
                **_NORMALISED, **_YARN, "expert_group_count": (_grouped, int),
                "expert_gating_func": _scored_by(_SOFTMAX),
            },
        ),
    ),
    "glm4moe": (
        Architecture(
            name="Glm4MoeForCausalLM", model_type="glm4_moe", partial=True,
            parts={
                **_CORRECTION, **_shared("mlp.shared_experts"), "post_attention_norm": "post_attention_layernorm",
            },
            keys=_NORMALISED, there={**BIASES, "use_qk_norm": "attn_q_norm.weight"},
            fixed={"norm_topk_prob": False},
        ),
    ),
    "granitemoe": (
        Architecture(
            name="GraniteMoeForCausalLM", model_type="granitemoe", interleaved=True,
            experts=("block_sparse_moe.experts", *_FFN.values()),
            parts={**_shared("block_sparse_moe.shared_mlp"), "ffn_gate_inp": "block_sparse_moe.gate"},
            keys={
                **LOCAL_EXPERTS, **_GRANITE, "expert_feed_forward_length": (ignored, int),
                "expert_shared_feed_forward_length": ("shared_intermediate_size", int),
            },
        ),
    ),
    "ernie4_5-moe": (
        Architecture(
            name="Ernie4_5_MoeForCausalLM", model_type="ernie4_5_moe", there={},
            parts={
                **_shared("mlp.shared_experts"), "exp_probs_b.bias": "mlp.gate.moe_statics.e_score_correction_bias",
            },
            single_rows=frozenset(("exp_probs_b.bias",)),
            keys={
                "expert_count": ("moe_num_experts", int), "expert_used_count": ("moe_k", int),
                "expert_feed_forward_length": ("moe_intermediate_size", int),
                "expert_shared_count": ("moe_num_shared_experts", int),
                "expert_shared_feed_forward_length": (ignored, int), "expert_gating_func": _scored_by(_SOFTMAX),
                "interleave_moe_layer_step": ("moe_layer_interval", int),
                "leading_dense_block_count": ("moe_layer_start_index", int),
            },
        ),
    ),
    "hunyuan-moe": (
        Architecture(
            name="HunYuanMoEV1ForCausalLM", model_type="hunyuan_v1_moe",
            parts={
                **_shared("mlp.shared_mlp"), "ffn_gate_inp": "mlp.gate.wg",
                "attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm",
            },
            keys={
                **EXPERTS, "expert_used_count": ("moe_topk", int), "expert_shared_count": ("num_shared_expert", int),
                "expert_shared_feed_forward_length": (ignored, int),
            },
        ),
    ),
    "dbrx": (
        Architecture(
            name="DbrxForCausalLM", model_type="dbrx", there={}, without=frozenset(("layer_norm_eps",)),
            experts=("ffn.experts", *_FFN.values()),
            parts={"attn_output_norm": "post_attention_layernorm", "ffn_gate_inp": "ffn.gate"},
            keys={
                "attention.head_count_kv": ("attn_config.kv_n_heads", int),
                "attention.clamp_kqv": ("attn_config.clip_qkv", float),
                "feed_forward_length": ("ffn_config.ffn_hidden_size", int),
                "expert_count": ("ffn_config.moe_num_experts", int),
                "expert_used_count": ("ffn_config.moe_top_k", int),
            },
        ),
    ),
    "phimoe": (
        Architecture(
            name="PhimoeForCausalLM", model_type="phimoe", parts={"ffn_gate_inp": "block_sparse_moe.gate"},
            experts=("block_sparse_moe.experts", "w1", "w3", "w2"), there={**BIASES, "lm_head_bias": "output.bias"},
            keys={**LOCAL_EXPERTS, **WINDOW, "expert_feed_forward_length": (ignored, int)},
        ),
    ),
    "llama4": (
        Architecture(
            name="Llama4ForCausalLM", model_type="llama4_text", there={},
            experts=("feed_forward.experts", *_FFN.values()),
            parts={
                **{name: f"feed_forward.{own}" for name, own in _FFN.items()},
                **_shared("feed_forward.shared_expert"), "ffn_gate_inp": "feed_forward.router",
            },
            keys={
                **LOCAL_EXPERTS, "feed_forward_length": ("intermediate_size_mlp", int), "expert_count": (_normed, int),
                "expert_feed_forward_length": ("intermediate_size", int),
                "interleave_moe_layer_step": ("interleave_moe_layer_step", int),
                "leading_dense_block_count": (ignored, int), "expert_gating_func": _scored_by(_SIGMOID),
            },
            fixed={"attention_chunk_size": 8192},
        ),
    ),
    "gpt-oss": (
        Architecture(
            name="GptOssForCausalLM", model_type="gpt_oss",
            parts={
                "post_attention_norm": "post_attention_layernorm", "attn_sinks.weight": "self_attn.sinks",
                "ffn_gate_inp": "mlp.router",
            },
            keys={**LOCAL_EXPERTS, **WINDOW, "expert_feed_forward_length": ("intermediate_size", int)},
            fixed={"rope_scaling.truncate": False},
        ),
    ),
}  # fmt: skip
