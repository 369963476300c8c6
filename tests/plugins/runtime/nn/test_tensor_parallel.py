"""Models cut over two gloo ranks give on every rank what one rank gives alone."""

import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from lsv_models import plugin
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config, load
from lsv_testing.tiny import tiny
from lsv_testing.tiny_hearing import tiny_hearing

pytestmark = pytest.mark.xdist_group("tensor parallel")  # the ranks are started once

SCRIPT = Path(__file__).with_name("tensor_parallel_rank.py")
RANKS = 2
SHARING = {
    "head_dim": 16, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 9, "pad_token_id": 0,
}  # fmt: skip
GEMMA3N = {
    **SHARING, "laurel_rank": 8, "altup_num_inputs": 2, "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0],
    "vocab_size_per_layer_input": 320,
}  # fmt: skip
GEMMA4 = {
    **SHARING, "global_head_dim": 32, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    "vocab_size_per_layer_input": 320, "use_double_wide_mlp": True, "enable_moe_block": True, "num_experts": 4,
    "top_k_experts": 2, "moe_intermediate_size": 32,
}  # fmt: skip
CASES = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "one kv head": ("llama", {"num_key_value_heads": 1}),
    "tied, odd vocabulary": ("qwen2", {"tie_word_embeddings": True, "vocab_size": 321}),
    "untied, odd vocabulary": ("qwen3", {"vocab_size": 321}),
    "experts": ("qwen3_moe", {}),
    "latents, groups of experts, a shared one": (
        "deepseek_v3",
        {
            "kv_lora_rank": 24,
            "q_lora_rank": 20,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
            "num_key_value_heads": 4,
        },
    ),
    "sinks, biased experts": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
    "norms over all heads": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "norms over all heads, one kv head": (
        "olmoe",
        {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 1},
    ),
    "stacked experts, a fused shared one": (
        "granitemoeshared",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48},
    ),
    "q, k and v of one tensor": (
        "dbrx",
        {
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 512,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4},
            "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
        },
    ),
    "a biased head": (
        "phimoe",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "lm_head_bias": True,
            "attention_bias": True,
            "vocab_size": 321,
        },
    ),
    "three axes, a tower": ("qwen2_vl", {"vision_config": {"depth": 1, "embed_dim": 16}}),
    "transposed": ("gpt2", {}),
    "one KV head after its queries": ("falcon", {}),
    "blocks of a head": ("gpt_neox", {}),
    "blocks of heads, head with a bias": ("codegen", {}),
    "slopes": ("bloom", {}),
    "norms of heads in one tensor": ("cohere", {"use_qk_norm": True}),
    "norms of heads in many": ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True}),
    "a narrow embedding": ("opt", {"word_embed_proj_dim": 32}),
    "keys of earlier layers, streams, layer inputs": ("gemma3n", GEMMA3N),
    "heads of two sizes, layer inputs, experts beside": ("gemma4", GEMMA4),
    "latents, scaled residuals": (
        "minicpm3",
        {
            "kv_lora_rank": 24,
            "q_lora_rank": 20,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 16,
            "num_key_value_heads": 4,
        },
    ),
    "across": ("whisper", {"seconds": 1, "encoder_layers": 1, "max_target_positions": 512}),
    "across in some layers, a head shorter than the embedding": (
        "mllama",
        {
            "vision_config": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_global_layers": 1,
                "intermediate_layers_indices": [0],
                "vision_output_dim": 32,
            }
        },
    ),
    "adapted": ("transformers", {}),
    "adapted, experts": ("transformers", {"num_experts": 4, "num_experts_per_tok": 2}),
}
MADE_AS = {
    "adapted": "granite", "adapted, experts": "olmoe",
    "keys of earlier layers, streams, layer inputs": "gemma3n_text",
    "heads of two sizes, layer inputs, experts beside": "gemma4_text",
}  # fmt: skip
"""What transformers calls the family, where that is not the name of its offer."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder with the checkpoints of all cases, and what each rank computed of them."""
    folder = tmp_path_factory.mktemp("ranks")
    for case, (family, shape) in CASES.items():
        make = tiny_hearing if family == "whisper" else partial(tiny, MADE_AS.get(case, family))
        make(folder / case / family, **shape)
    ranks = [subprocess.Popen([sys.executable, SCRIPT, str(rank), str(RANKS), folder]) for rank in range(RANKS)]
    assert [rank.wait(timeout=200) for rank in ranks] == [0] * RANKS
    return folder


@pytest.mark.row("F-564")
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one(case, results):
    family, _ = CASES[case]
    declared = load(engine_config(results / case / family, family), catalog_of(plugin))
    alone = runpy.run_path(str(SCRIPT))["make_sequences"](declared)
    whole = torch.cat([*alone.step([(0, 12), (1, 7)]), *alone.step([(0, 8)])])
    shares = [torch.load(results / f"{case}.{rank}", weights_only=True) for rank in range(RANKS)]
    assert torch.equal(shares[0]["logits"], shares[1]["logits"])
    torch.testing.assert_close(shares[0]["logits"], whole, rtol=1e-5, atol=1e-4)
    assert all(share["bytes"] < 0.75 * declared.weight_bytes for share in shares)
