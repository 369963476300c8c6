"""Shapes of tiny models with recurrent layers, by family."""

from __future__ import annotations

from typing import Any

_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4, "linear_num_key_heads": 2,
        "linear_key_head_dim": 8, "head_dim": 16, "linear_value_head_dim": 16, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    },
    "mamba": {},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "num_experts": 4},
    "bamba": {**_MAMBA2, "attn_layer_indices": [1]},
    "nemotron_h": {
        "layers_block_type": ["mamba", "moe", "attention", "mlp"], "num_hidden_layers": 4, "mamba_num_heads": 8,
        "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "head_dim": 16, "n_routed_experts": 4,
        "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48, "moe_latent_size": 24,
    },
    "rwkv": {"attention_hidden_size": 64},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "block_multiple_of": 16},
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 12},
    "minimax": {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 4},
    "xlstm": {"num_heads": 4},
}  # fmt: skip
