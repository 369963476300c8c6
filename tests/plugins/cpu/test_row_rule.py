"""Who shares a request's steps changes no bit of its log probabilities, whatever the model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_cpu import native
from lsv_testing.tiny import tiny
from suite.recurrent import FAMILIES as RECURRENT

BREAKS_IT = "recurrent_gemma"
"""Its gates are products of heads by torch."""
SHARING: dict[str, Any] = {
    "head_dim": 16, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 24, "pad_token_id": 0,
    "vocab_size_per_layer_input": 320,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    },
    "minicpm3": {
        "kv_lora_rank": 24, "q_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 16,
        "num_key_value_heads": 4,
    },
    **{name: shape for name, shape in RECURRENT.items() if name != BREAKS_IT},
    "gemma3n_text": {**SHARING, "laurel_rank": 16, "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0]},
    "gemma4_text": {
        **SHARING, "global_head_dim": 32, "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 8,
        "top_k_experts": 2, "moe_intermediate_size": 32,
    },
}  # fmt: skip
FAST = ("qwen2_moe", "minicpm3")


def run(path: Path, requests: int) -> list[list[tuple[int, float]]]:
    """Tokens and log probabilities of nine ragged prompts, of which so many share a step."""
    rng = random.Random(3)
    prompts = [[rng.randrange(5, 250) for _ in range(length)] for length in (1, 2, 16, 17, 31, 33, 60, 65, 3)]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False, logprobs=0)
    options: dict[str, Any] = {
        "platform": "cpu", "emulate": False, "dtype": "float32", "max_model_len": 128, "max_num_batched_tokens": 512,
        "max_num_seqs": requests, "block_size": 16, "skip_tokenizer_init": True,
        "enable_chunked_prefill": False, "enable_prefix_caching": False,
    }  # fmt: skip
    with LLM(str(path), **options) as llm:
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    outputs = [answer.outputs[0] for answer in answers]
    return [[(token, one[token].logprob) for token, one in zip(out.token_ids, out.logprobs, strict=True)]
            for out in outputs]  # fmt: skip


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in FAMILIES]
)
def test_company_changes_no_bit(family: str, tmp_path: Path) -> None:
    if native.load("auto") is None:
        pytest.skip("no C++ compiler")
    path = tiny(family, tmp_path / family, **FAMILIES[family])
    alone = run(path, 1)
    assert run(path, 4) == alone
    assert run(path, 8) == alone
