"""Variations of Llama's block on the CPU's own kernels: greedy tokens are transformers' with everything switched on."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lsv import LLM, SamplingParams
from lsv_testing.tiny import tiny

LENGTH, TOKENS, TIE = 256, 24, 1e-4
HEADS: dict[str, Any] = {"head_dim": 16}
WINDOWED: dict[str, Any] = {"sliding_window": 24}
SHARING: dict[str, Any] = {
    "num_hidden_layers": 4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "pad_token_id": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma": HEADS,
    "gemma2": {**HEADS, **WINDOWED, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0},
    "gemma3_text": {**HEADS, **WINDOWED, "query_pre_attn_scalar": 24, "sliding_window_pattern": 2},
    "gemma3n_text": {
        **HEADS,
        **WINDOWED,
        **SHARING,
        "laurel_rank": 8,
        "vocab_size_per_layer_input": 320,
        "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0],
    },
    "gemma4_text": {
        **HEADS,
        **WINDOWED,
        **SHARING,
        "global_head_dim": 32,
        "vocab_size_per_layer_input": 320,
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
    "phi3": {},
    "glm": HEADS,
    "glm4": HEADS,
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "attention_multiplier": 0.1},
    "olmo2": {},
    "olmo3": {**WINDOWED, "num_hidden_layers": 4},
    "smollm3": {"no_rope_layer_interval": 2},
    "exaone4": {**WINDOWED, "sliding_window_pattern": 2},
    "seed_oss": HEADS,
    "hunyuan_v1_dense": HEADS,
    "ernie4_5": HEADS,
    "internlm3": HEADS,
    "ministral": {**HEADS, **WINDOWED, "layer_types": ["sliding_attention", "full_attention"]},
}
QUICK = "olmo2"
ALL = {
    "max_num_seqs": 8, "enable_chunked_prefill": True, "max_num_batched_tokens": 24, "enable_prefix_caching": True,
}  # fmt: skip


def slowly(names: Iterable[str]) -> list[Any]:
    """All but the quick one among the slow tests."""
    return [pytest.param(name, marks=[] if name == QUICK else [pytest.mark.slow]) for name in names]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = tiny(family, tmp_path_factory.mktemp(family), **FAMILIES[family])
        return made[family]

    return make


def prompts() -> list[list[int]]:
    """Ragged lengths; half of them share a prefix of 48 tokens."""
    rng = random.Random(3)
    shared = rng.choices(range(5, 250), k=48)
    return [
        (shared if index % 2 else []) + rng.choices(range(5, 250), k=length)
        for index, length in enumerate((1, 2, 17, 33, 60, 64, 90))
    ]


def run(path: Path, **options: Any) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    given = {"dtype": "float32", "max_model_len": LENGTH, "block_size": 16, "skip_tokenizer_init": True, **options}
    with LLM(str(path), **given) as llm:
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts()], params, use_tqdm=False)
        return [answer.outputs[0].token_ids for answer in answers]


def check(path: Path, answers: list[tuple[int, ...]]) -> None:
    """Tokens are transformers'; where they part, its two best logits tie."""
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for prompt, answer in zip(prompts(), answers, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        best = logits.max(dim=-1).values - logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert float(best.max()) < TIE, f"prompt of {len(prompt)}: token {int(best.argmax())}"


@pytest.mark.parametrize("family", slowly(FAMILIES))
def test_tokens_are_transformers_with_everything_switched_on(family, checkpoint):
    blocks = 40 if "sliding_window" in FAMILIES[family] else 18  # layers with a window have blocks of their own
    check(checkpoint(family), run(checkpoint(family), **ALL, num_gpu_blocks_override=blocks))


@pytest.mark.slow
@pytest.mark.two_ranks
@pytest.mark.parametrize(
    "family", ["gemma2", "gemma3n_text", "gemma4_text", "phi3", "olmo2", "glm4", "granite", "hunyuan_v1_dense"]
)
def test_two_ranks_give_transformers_tokens(family, checkpoint):
    check(checkpoint(family), run(checkpoint(family), max_num_seqs=8, tensor_parallel_size=2))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_runs_in_eight_bits(family, checkpoint):
    plain, quantised = run(checkpoint(family)), run(checkpoint(family), quantization="int8")
    same = sum(one[0] == other[0] for one, other in zip(plain, quantised, strict=True))
    assert same >= len(plain) - 2, "the first token of nearly every answer"
