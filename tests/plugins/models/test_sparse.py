"""Every family with experts gives transformers' logits, whole, in chunks, in mixed batches and while decoding."""

import json
from typing import Any

import pytest

from lsv.testing.model import check_model, engine_config

_LATENT = {
    "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 16, "num_key_value_heads": 4,
}  # fmt: skip
_GROUPED = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.7,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 1e4, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.7,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_GRANITE = {
    **_LOCAL, "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
    "attention_multiplier": 0.1,
}  # fmt: skip
_DBRX = {
    "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512, "vocab_size": 320,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.7, "rope_theta": 1e4},
    "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
}  # fmt: skip
_GPT_OSS = {
    **_LOCAL, "head_dim": 16, "sliding_window": 9, "swiglu_limit": 0.6,
    "rope_parameters": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 1e4,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    },
}  # fmt: skip
_LLAMA4 = {
    **_LOCAL, "head_dim": 16, "num_hidden_layers": 4, "intermediate_size_mlp": 48, "interleave_moe_layer_step": 2,
    "no_rope_layer_interval": 2, "floor_scale": 8, "attention_chunk_size": 512, "num_experts_per_tok": 1,
}  # fmt: skip
_LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0 + n for n in range(8)],
    "short_mscale": 1.2, "long_mscale": 1.3, "original_max_position_embeddings": 512, "rope_theta": 1e4,
}  # fmt: skip
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": ("deepseek_v2", {
        **_LATENT, **_GROUPED, "q_lora_rank": None, "topk_method": "group_limited_greedy", "n_shared_experts": 2,
    }),
    "deepseek_v3": ("deepseek_v3", {**_LATENT, **_GROUPED, "q_lora_rank": 20}),
    "deepseek_v3 yarn": ("deepseek_v3", {
        **_LATENT, **_GROUPED, "q_lora_rank": 20, "rope_parameters": _YARN, "norm_topk_prob": False,
        "rope_interleave": False, "v_head_dim": 24,
    }),
    "qwen2_moe": ("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 48}),
    "olmoe": ("olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True}),
    "glm4_moe": ("glm4_moe", {**_GROUPED, "use_qk_norm": True, "attention_bias": True, "head_dim": 16}),
    "granitemoe": ("granitemoe", _GRANITE),
    "granitemoeshared": ("granitemoeshared", {**_GRANITE, "shared_intermediate_size": 48}),
    "ernie4_5_moe": ("ernie4_5_moe", {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32}),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {"num_experts": 4, "moe_topk": 2, "head_dim": 16}),
    "dbrx": ("dbrx", _DBRX),
    "phimoe": ("phimoe", {**_LOCAL, "attention_bias": True, "lm_head_bias": True, "rope_parameters": _LONGROPE}),
    "llama4": ("llama4_text", _LLAMA4),
    "gpt_oss": ("gpt_oss", _GPT_OSS),
}  # fmt: skip
ROWS = {"qwen2_moe": "F-638", "phimoe": "F-634", "dbrx": "F-608"}
CASES = [pytest.param(case, id=case, marks=[pytest.mark.row(ROWS[case])] if case in ROWS else []) for case in SHAPES]


@pytest.mark.parametrize("case", CASES)
def test_sparse_family_equals_transformers(case, checkpoint, catalog, record_property):
    family, shape = SHAPES[case]
    found = check_model(engine_config(checkpoint(family, **shape), case.split()[0]), catalog, tolerance=1e-4)
    worst = {comparison.schedule: f"{comparison.error:.1e}" for comparison in found}
    record_property("largest logit difference", json.dumps(worst))
