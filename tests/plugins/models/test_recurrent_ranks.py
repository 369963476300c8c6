"""Hybrids over two ranks give the tokens of one: recurrent layers stand on both, all others are cut."""

from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_testing.tiny import tiny

MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 16}
KINDS = {"layer_types": ["linear_attention", "full_attention"]}
DELTA = {
    **KINDS, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "head_dim": 16,
    "linear_value_head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}  # fmt: skip
LATENT = {
    **KINDS, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_key_value_heads": 4,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_next": DELTA,
    "bamba": {**MAMBA2, "attn_layer_indices": [1]},
    "granitemoehybrid": {
        **MAMBA2, "num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["mamba", "attention"],
        "shared_intermediate_size": 96,
    },
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "num_experts": 4},
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 128, "mlp_multipliers": [0.8, 1.2]},
    "nemotron_h": {
        "layers_block_type": ["mamba", "moe", "attention", "mlp"], "num_hidden_layers": 4, "mamba_num_heads": 8,
        "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "head_dim": 16, "n_routed_experts": 4,
        "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48, "moe_latent_size": 24,
    },
    "lfm3": {
        "layer_types": ["conv", "full_attention", "sliding_attention"], "num_hidden_layers": 3, "head_dim": 16,
        "sliding_window": 12,
    },
    "olmo_hybrid": {**KINDS, "linear_num_value_heads": 4, "linear_num_key_heads": 4, "linear_key_head_dim": 8,
                    "linear_value_head_dim": 8},
    "kimi_linear": {**LATENT, "linear_head_dim": 8, "linear_num_heads": 6},
    "bailing_hybrid": {**LATENT, "head_dim": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "minimax": {**KINDS, "num_local_experts": 4},
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 12},
    "xlstm": {"num_heads": 4},
}  # fmt: skip
PROMPTS = [[5, 9, 200], list(range(20, 57)), [7] * 17]


def run(path: Path, **options: Any) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)
    given = {"dtype": "float32", "max_model_len": 128, "skip_tokenizer_init": True, "max_num_batched_tokens": 24}
    with LLM(str(path), enable_chunked_prefill=True, **given, **options) as llm:
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
        return [answer.outputs[0].token_ids for answer in answers]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_give_the_tokens_of_one(family, tmp_path):
    path = tiny(family, tmp_path, **FAMILIES[family])
    assert run(path, tensor_parallel_size=2) == run(path)
