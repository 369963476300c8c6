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
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deepseek_v2": ("deepseek_v2", "deepseek_v2", {
        **_LATENT, **_GROUPED, "q_lora_rank": None, "topk_method": "group_limited_greedy", "n_shared_experts": 2,
    }),
    "deepseek_v3": ("deepseek_v3", "deepseek_v3", {**_LATENT, **_GROUPED, "q_lora_rank": 20}),
    "deepseek_v3 yarn": ("deepseek_v3", "deepseek_v3", {
        **_LATENT, **_GROUPED, "q_lora_rank": 20, "rope_parameters": _YARN, "norm_topk_prob": False,
        "rope_interleave": False, "v_head_dim": 24,
    }),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_sparse_family_equals_transformers(case, checkpoint, catalog, record_property):
    offer, family, shape = CASES[case]
    found = check_model(engine_config(checkpoint(family, **shape), offer), catalog, tolerance=1e-4)
    worst = {comparison.schedule: f"{comparison.error:.1e}" for comparison in found}
    record_property("largest logit difference", json.dumps(worst))
