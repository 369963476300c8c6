"""Small numbers for the keys of configurations: by what a key is called, and by family where that does not do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

VOCABULARY = 320
LENGTH = 512
ENCODED = 128
"""Of what an encoder reads: with room for longer texts in the cache, nothing would ever lack a block."""
WINDOW = 12
"""Shorter than the prompts, so that it shows."""

_PATTERNS: tuple[tuple[str, int], ...] = (
    (r"(.*_)?vocab_size(_per_layer_input|_base)?|encoder_hash_byte_group_vocab", VOCABULARY),
    (r"max_position_embeddings|max_(source|target)_positions|n_positions|n_ctx|max_seq_len|model_max_length"
     r"|max_(en|de)coder_position_embeddings|context_length|original_max_position_embeddings", LENGTH),
    (r"(sliding|attention|keep|local)_?window(_size|_len)?|window_size|sliding_window_size|attention_window_size"
     r"|local_attention|local_radius", WINDOW),
    (r"attention_chunk_size", 32),
    (r"(num_)?(en|de)coder_layers|num_(hidden_)?layers|n_layers?|num_blocks|num_layers_per_stack", 2),
    (r"(swa_)?num_key_value_heads|num_kv_heads|num_query_groups", 2),
    (r"((en|de)coder_|num_(en|de)coder_|num_|swa_num_)?attention_heads|n_heads?|num_heads|indexer_n_heads"
     r"|n_mamba_heads", 4),
    (r"(linear_)?num_heads|linear_num_(key|value)_heads", 4),
    (r"mamba_n(um)?_heads", 8),
    (r"((swa|index|linear|linear_key|linear_value)_)?head_dim|kv_channels|d_kv|d_head|dim_head|attention_head_size"
     r"|mamba_d_head|mamba_head_?dim|query_pre_attn_scalar|v_head_dim", 16),
    (r"qk_nope_head_dim", 16),
    (r"qk_rope_head_dim", 8),
    (r"qk_head_dim", 24),
    (r"rotary_dim", 8),
    (r"hidden_size|d_model|n_embd|emb_dim|embedding_dim|embedding_size|word_embed_proj_dim|lru_width"
     r"|attention_hidden_size|(in|out)put_embedding_size|dim_model_base|hidden_size_global", 64),
    (r"((dense|moe|shared|shared_experts?|moe_shared_expert|prefix_dense)_)?intermediate_size(_mlp)?|(.*_)?ffn_dim|d_ff"
     r"|dff|dim_ff|d_inner|n_inner|(expert_)?ffn_hidden_size|feed_forward_size|router_hidden_size"
     r"|moe_latent_size", 96),
    (r"(q|kv|o)_lora_rank|laurel_rank|gated_norm_rank|hc_lowrank|time_step_rank|mamba_dt_rank|adapter_rank|d_rel"
     r"|hidden_size_per_layer_input|(pronunciation|shape)_embed_dim|ple_embed_dim", 16),
    (r"(ssm_)?state_size|mamba_d_state", 8),
    (r"(mamba_)?chunk_size", 8),
    (r"num_(local_|routed_)?experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|top_k_experts", 2),
    (r"n_group|num_expert_group|topk_group|o_groups", 2),
    (r"(n|num)_shared_experts|moe_num_shared_experts|num_dense_layers|first_k_dense_replace", 1),
    (r"index_n_heads", 32),  # fewer often are all at zero, and which of equals is chosen is nobody's choice
    (r"index_topk", 8),
    (r"attn_layer_period|layer_group_size|sliding_window_pattern|_sliding_window_pattern|no_rope_layer_interval"
     r"|global_attn_every_n_layers", 2),
    (r"attn_layer_offset", 1),
    (r"relative_attention_max_distance|position_bias_max_distance|relative_max_distance", 32),
    (r"(relative_attention_|position_bias_)?num_buckets", 8),
    (r"n_groups|mamba_n_?groups|zero_expert_num", 2),
    (r"split_ngram_parts|index_block_size|heads_per_ngram", 4),
    (r"prompt_length|prompt_mid_dim", 8),
)  # fmt: skip
_HYBRID = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
_WINDOWED = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_WINDOWED_HALF = {
    **_WINDOWED, "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "hidden_size": 64, "head_dim": 16,
    "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "query_pre_attn_scalar": 16,
}  # fmt: skip
_CONVOLVING = {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
_SHARED = {
    "num_hidden_layers": 4,
    "layers_block_type": ["linear_attention", "hybrid"] * 2,
    "attention_hidden_size": 128,
    "attention_head_dim": 32,
    "n_mamba_heads": 8,
}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "bigbird_pegasus": {"block_size": 8, "num_random_blocks": 1},
    "bitnet": {"num_key_value_heads": 2},
    "cohere": {"logit_scale": 1.0},
    "cohere2": {"logit_scale": 1.0},
    "cohere2_moe": {"logit_scale": 1.0},
    "cohere_compass_text": {
        **_WINDOWED,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "mrope_section": [4, 2, 2]}
            for kind, theta in (("sliding_attention", 1e4), ("full_attention", 1e5))
        },
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "head_dim": 16, "num_experts_per_tok": 2},
    "dots3_note_text": {
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "head_dim": 24,
        "sliding_window": WINDOW,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 16,
        "swa_kv_lora_rank": 16,
        "swa_head_dim": 24,
        "swa_qk_nope_head_dim": 16,
        "swa_v_head_dim": 16,
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dory": {
        **_WINDOWED,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "n_input_layers": 1,
        "n_recurrent_layers": 2,
        "n_output_layers": 1,
        "initializer_range": 1.0,  # vectors are stored as multiples of it, and drawn around one
        "ngpt_alpha_init": 0.5,
    },
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3_text": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
        "intermediate_size": [96] * 4,
    },
    "gemma4_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "global_head_dim": 32,
    },
    "gemma4_unified_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "global_head_dim": 32,
    },
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {**_HYBRID, "position_embedding_type": "rope", "mamba_n_heads": 8, "mamba_d_head": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "inkling_text": {"logits_mup_width_multiplier": 1.0},
    "laguna": _WINDOWED,
    "led": {"max_encoder_position_embeddings": 144},
    "lfm2": {"full_attn_idxs": [1]},
    "lfm2_moe": {**_CONVOLVING, "num_dense_layers": 1},
    "mamba2": {"num_heads": 8},
    "mellum": _WINDOWED,
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 16},
    "nllb-moe": {"encoder_sparse_step": 2, "decoder_sparse_step": 2},
    "pegasus_x": {"block_size": 16, "num_global_tokens": 3},
    "prophetnet": {"max_position_embeddings": ENCODED + 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "hash_seed": 0,
        "axial_pos_shape": [16, 32],
        "axial_pos_embds_dim": [32, 32],
        "num_buckets": 8,
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
    },
    "smollm3": {"no_rope_layers": [1, 0]},
    "switch_transformers": {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    "t5gemma": {"decoder_start_token_id": 2},  # its padding is 0, which it masks
    "t5gemma2": {"decoder_start_token_id": 2, "decoder": _WINDOWED_HALF, "encoder": {"text_config": _WINDOWED_HALF}},
    "xmod": {"default_language": "en_XX"},
    "zamba": _SHARED,
    "zamba2": _SHARED,
}
"""Keys whose default says too little of what the family's checkpoints have, or that depend on each other."""
_TOKENS = {"bos": 256, "eos": 257, "pad": 258}


def small(key: str, value: Any) -> Any:
    """What a tiny configuration has under ``key``, where the family's default is ``value``; None keeps that."""
    if type(value) is not int:
        return None
    for pattern, number in _PATTERNS:
        if re.fullmatch(pattern, key):
            return min(number, value) if value > 0 else None
    if key.endswith(("_token_id", "_token_index")) and value >= _TOKENS["bos"]:
        return _TOKENS.get(key.partition("_")[0], 259)
    return None
