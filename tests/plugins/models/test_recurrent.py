"""Recurrent and hybrid families give transformers' logits, whole, in chunks, in mixed batches and while decoding."""

from typing import Any

import pytest

from lsv.testing.model import check_model, engine_config

TOLERANCE = 1e-4
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 16}
JAMBA = {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "num_experts": 4, "mamba_dt_rank": 5}
LFM2 = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "block_multiple_of": 16}
DELTA = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3, "head_dim": 16,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    "mlp_only_layers": [2],
}  # fmt: skip
NEMOTRON = {
    "layers_block_type": ["mamba", "mlp", "attention", "mamba"], "num_hidden_layers": 4, "mamba_num_heads": 8,
    "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "head_dim": 16, "chunk_size": 16,
}  # fmt: skip
GRANITE = {
    **MAMBA2, "num_local_experts": 0, "layer_types": ["mamba", "attention"], "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 2.0, "shared_intermediate_size": 96,
}  # fmt: skip
FALCON = {
    **MAMBA2, "mamba_d_ssm": 128, "key_multiplier": 0.7, "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.6,
    "attention_in_multiplier": 1.1, "attention_out_multiplier": 0.9, "lm_head_multiplier": 0.5,
    "embedding_multiplier": 2.0, "mlp_multipliers": [0.8, 1.2], "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9],
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("mamba", {"state_size": 8, "time_step_rank": 6}),
    "mamba untied": ("mamba", {"state_size": 8, "tie_word_embeddings": False, "use_bias": True}),
    "falcon mamba": ("falcon_mamba", {"state_size": 8}),
    "mamba2": ("mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 16}),
    "bamba": ("bamba", {**MAMBA2, "num_hidden_layers": 3, "attn_layer_indices": [1]}),
    "bamba limits": ("bamba", {**MAMBA2, "attn_layer_indices": [], "time_step_limit": [0.05, 0.5]}),
    "jamba": ("jamba", JAMBA),
    "qwen3 next": ("qwen3_next", DELTA),
    "nemotron h": ("nemotron_h", NEMOTRON),
    "granite hybrid": ("granitemoehybrid", GRANITE),
    "granite hybrid rope": ("granitemoehybrid", {**GRANITE, "position_embedding_type": "rope"}),
    "falcon h1": ("falcon_h1", FALCON),
    "falcon h1 normed": ("falcon_h1", {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "lfm2": ("lfm2", LFM2),
    "lfm2 biased": ("lfm2", {**LFM2, "conv_bias": True, "block_auto_adjust_ff_dim": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_family_equals_transformers(case, checkpoint, catalog):
    family, shape = CASES[case]
    found = check_model(engine_config(checkpoint(family, **shape), family), catalog, tolerance=TOLERANCE)
    print(f"\n{case:24}" + "  ".join(f"{one.schedule} {one.error:.1e}" for one in found))
