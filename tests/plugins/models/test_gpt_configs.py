"""The config.json files of published checkpoints of the GPT line: read to the last key, and of the published size."""

import json
from typing import Any

import pytest

from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config

# their own keys, without those of training and of tokens
CONFIGS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "gpt2": ("gpt2", 0.124, {
        "activation_function": "gelu_new", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50257, "layer_norm_epsilon": 1e-5,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    }),
    "bigcode/starcoder": ("gpt_bigcode", 15.52, {
        "activation_function": "gelu", "attention_softmax_in_fp32": True, "attn_pdrop": 0.1, "inference_runner": 0,
        "multi_query": True, "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 40, "n_positions": 8192,
        "pad_key_length": True, "pre_allocate_kv_cache": False, "scale_attention_softmax_in_fp32": True,
        "scale_attn_weights": True, "summary_type": "cls_index", "summary_use_proj": True,
        "validate_runner_input": True, "vocab_size": 49152, "layer_norm_epsilon": 1e-5,
    }),
    "EleutherAI/gpt-j-6b": ("gptj", 6.05, {
        "activation_function": "gelu_new", "gradient_checkpointing": False, "n_embd": 4096, "n_head": 16,
        "n_inner": None, "n_layer": 28, "n_positions": 2048, "rotary": True, "rotary_dim": 64,
        "scale_attn_weights": True, "summary_type": "cls_index", "summary_use_proj": True,
        "tie_word_embeddings": False, "vocab_size": 50400,
    }),
    "Salesforce/codegen-350M-mono": ("codegen", 0.357, {
        "activation_function": "gelu_new", "n_ctx": 2048, "n_embd": 1024, "n_head": 16, "n_inner": None, "n_layer": 20,
        "n_positions": 2048, "rotary_dim": 32, "scale_attn_weights": True, "tie_word_embeddings": False,
        "vocab_size": 51200,
    }),
    "EleutherAI/pythia-1b": ("gpt_neox", 1.01, {
        "hidden_act": "gelu", "hidden_size": 2048, "intermediate_size": 8192, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "num_attention_heads": 8, "num_hidden_layers": 16, "rotary_emb_base": 10000,
        "rotary_pct": 0.25, "tie_word_embeddings": False, "use_parallel_residual": True, "vocab_size": 50304,
    }),
    "EleutherAI/gpt-neo-125m": ("gpt_neo", 0.125, {
        "activation_function": "gelu_new", "attention_layers": ["global", "local"] * 6, "num_heads": 12,
        "attention_types": [[["global", "local"], 6]], "hidden_size": 768, "intermediate_size": None,
        "layer_norm_epsilon": 1e-5, "max_position_embeddings": 2048, "num_layers": 12, "summary_use_proj": True,
        "vocab_size": 50257, "window_size": 256,
    }),
    "facebook/opt-350m": ("opt", 0.331, {
        "_remove_final_layer_norm": False, "activation_dropout": 0.0, "activation_function": "relu",
        "do_layer_norm_before": False, "ffn_dim": 4096, "hidden_size": 1024, "layerdrop": 0.0,
        "max_position_embeddings": 2048, "num_attention_heads": 16, "num_hidden_layers": 24, "prefix": "</s>",
        "vocab_size": 50272, "word_embed_proj_dim": 512,
    }),
    "bigscience/bloom-560m": ("bloom", 0.559, {
        "apply_residual_connection_post_layernorm": False, "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": True, "hidden_dropout": 0.0, "layer_norm_epsilon": 1e-5, "masked_softmax_fusion": True,
        "n_embed": 1024, "n_inner": None, "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100,
        "pretraining_tp": 1, "seq_length": 2048, "skip_bias_add": True, "skip_bias_add_qkv": False,
        "slow_but_exact": False, "vocab_size": 250880,
    }),
    "mosaicml/mpt-7b": ("mpt", 6.65, {
        "attn_config": {
            "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
            "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False,
            "qk_ln": False, "softmax_scale": None,
        },
        "d_model": 4096, "emb_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4, "init_device": "cpu",
        "init_config": {"emb_init_std": None, "name": "kaiming_normal_"}, "learned_pos_emb": True,
        "logit_scale": None, "max_seq_len": 2048, "n_heads": 32, "n_layers": 32, "no_bias": True,
        "norm_type": "low_precision_layernorm", "tokenizer_name": "EleutherAI/gpt-neox-20b", "verbose": 0,
        "vocab_size": 50432,
    }),
    "tiiuae/falcon-7b": ("falcon", 6.92, {
        "alibi": False, "apply_residual_connection_post_layernorm": False, "bias": False, "hidden_size": 4544,
        "layer_norm_epsilon": 1e-5, "multi_query": True, "new_decoder_architecture": False,
        "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": True, "vocab_size": 65024,
    }),
    "tiiuae/falcon-40b": ("falcon", 41.3, {
        "alibi": False, "bias": False, "hidden_size": 8192, "model_type": "RefinedWeb", "n_head": 128,
        "n_head_kv": 8, "n_layer": 60, "layer_norm_epsilon": 1e-5, "parallel_attn": True, "vocab_size": 65024,
    }),
    "tiiuae/falcon-rw-1b": ("falcon", 1.31, {
        "alibi": True, "bias": True, "hidden_size": 2048, "model_type": "RefinedWebModel", "multi_query": False,
        "n_head": 32, "n_layer": 24, "layer_norm_epsilon": 1e-5, "parallel_attn": False, "vocab_size": 50304,
    }),
    "microsoft/phi-2": ("phi", 2.78, {
        "hidden_act": "gelu_new", "hidden_size": 2560, "intermediate_size": 10240, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "partial_rotary_factor": 0.4, "qk_layernorm": False, "rope_scaling": None,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 51200,
    }),
    "stabilityai/stablelm-3b-4e1t": ("stablelm", 2.80, {
        "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 6912, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "rope_theta": 10000, "tie_word_embeddings": False,
        "use_qkv_bias": False, "vocab_size": 50304,
    }),
    "OrionStarAI/Orion-14B-Base": ("orion", 14.5, {
        "attention_bias": False, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 15360,
        "max_position_embeddings": 4096, "max_sequence_length": 4096, "num_attention_heads": 40,
        "num_hidden_layers": 40, "num_key_value_heads": 40, "pretraining_tp": 1, "rms_norm_eps": 1e-5,
        "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 84608,
    }),
    "bigcode/starcoder2-3b": ("starcoder2", 3.03, {
        "activation_function": "gelu", "attention_softmax_in_fp32": True, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 3072, "intermediate_size": 12288, "layer_norm_epsilon": 1e-5, "max_position_embeddings": 16384,
        "mlp_type": "default", "norm_epsilon": 1e-5, "norm_type": "layer_norm", "num_attention_heads": 24,
        "num_hidden_layers": 30, "num_key_value_heads": 2, "rope_theta": 999999.4420358813,
        "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "sliding_window": 4096, "use_bias": True,
        "vocab_size": 49152,
    }),
    "CohereForAI/c4ai-command-r-v01": ("cohere", 34.98, {
        "attention_bias": False, "hidden_act": "silu", "hidden_size": 8192, "intermediate_size": 22528,
        "layer_norm_eps": 1e-5, "logit_scale": 0.0625, "max_position_embeddings": 8192, "model_max_length": 131072,
        "num_attention_heads": 64, "num_hidden_layers": 40, "num_key_value_heads": 64, "rope_theta": 8000000.0,
        "use_qk_norm": False, "vocab_size": 256000,
    }),
    "CohereForAI/c4ai-command-r7b-12-2024": ("cohere2", 8.03, {
        "attention_bias": False, "cache_implementation": "hybrid", "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 14336, "layer_norm_eps": 1e-5, "layer_switch": 4,
        "logit_scale": 0.25, "max_position_embeddings": 8192, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj", "rope_scaling": None, "rope_theta": 50000, "rotary_pct": 1.0,
        "sliding_window": 4096, "sliding_window_pattern": 4, "use_embedding_sharing": True,
        "use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": True,
        "vocab_size": 256000,
    }),
    "nvidia/Minitron-8B-Base": ("nemotron", 8.27, {
        "attention_bias": False, "head_dim": 128, "hidden_act": "relu2", "hidden_size": 4096,
        "intermediate_size": 16384, "max_position_embeddings": 4096, "mlp_bias": False, "norm_eps": 1e-5,
        "num_attention_heads": 48, "num_hidden_layers": 32, "num_key_value_heads": 8, "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 256000,
    }),
    "allenai/OLMo-1B-hf": ("olmo", 1.18, {
        "attention_bias": False, "clip_qkv": None, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 2048, "num_attention_heads": 16,
        "num_hidden_layers": 16, "num_key_value_heads": 16, "rope_scaling": None, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "vocab_size": 50304,
    }),
    "adept/persimmon-8b-base": ("persimmon", 9.39, {
        "hidden_act": "relu2", "hidden_size": 4096, "intermediate_size": 16384, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 16384, "num_attention_heads": 64, "num_hidden_layers": 36,
        "partial_rotary_factor": 0.5, "qk_layernorm": True, "rope_scaling": None, "rope_theta": 25000.0,
        "tie_word_embeddings": False, "vocab_size": 262144,
    }),
    "core42/jais-13b": ("jais", 13.0, {
        "activation_function": "swiglu", "embeddings_scale": 14.6, "inner_dim": None, "layer_norm_epsilon": 1e-5,
        "n_embd": 5120, "n_head": 40, "n_inner": 13653, "n_layer": 40, "n_positions": 2048,
        "position_embedding_type": "alibi", "reorder_and_upcast_attn": False, "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False, "scale_qk_dot_by_d": True, "vocab_size": 84992,
        "width_scale": 0.11100000000000002,
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_published_config_is_read(name, catalog, tmp_path):
    offer, billions, config = CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    declared = declare(engine_config(tmp_path, offer, max_len=1024), catalog)
    assert sum(parameter.numel() for parameter in declared.model.parameters()) / 1e9 == pytest.approx(
        billions, rel=0.01
    )
