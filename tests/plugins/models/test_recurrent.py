"""Recurrent and hybrid families give transformers' logits, whole, in chunks, in mixed batches and while decoding."""

from typing import Any

import pytest

from lsv.testing.model import check_model, engine_config

TOLERANCE = 1e-4
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 16}
JAMBA = {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "num_experts": 4, "mamba_dt_rank": 5}
LFM2 = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "block_multiple_of": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("mamba", {"state_size": 8, "time_step_rank": 6}),
    "mamba untied": ("mamba", {"state_size": 8, "tie_word_embeddings": False, "use_bias": True}),
    "falcon mamba": ("falcon_mamba", {"state_size": 8}),
    "mamba2": ("mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 16}),
    "bamba": ("bamba", {**MAMBA2, "num_hidden_layers": 3, "attn_layer_indices": [1]}),
    "bamba limits": ("bamba", {**MAMBA2, "attn_layer_indices": [], "time_step_limit": [0.05, 0.5]}),
    "jamba": ("jamba", JAMBA),
    "lfm2": ("lfm2", LFM2),
    "lfm2 biased": ("lfm2", {**LFM2, "conv_bias": True, "block_auto_adjust_ff_dim": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_family_equals_transformers(case, checkpoint, catalog):
    family, shape = CASES[case]
    found = check_model(engine_config(checkpoint(family, **shape), family), catalog, tolerance=TOLERANCE)
    print(f"\n{case:24}" + "  ".join(f"{one.schedule} {one.error:.1e}" for one in found))
