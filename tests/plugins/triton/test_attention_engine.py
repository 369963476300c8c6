"""Whole engines on these backends give the tokens of the platform's own attention."""

from __future__ import annotations

from typing import Any

import pytest

from lsv import LLM, SamplingParams

SHARED = "Alice went to the market with her brother. She bought a red apple, a blue hat and two old books. "
PROMPTS = [
    "The capital of France is",
    *(SHARED + end for end in ("Then she", "Her brother", "The hat", "At home")),
    "List three colours:",
]
SHARING = {"enable_prefix_caching": True, "enable_chunked_prefill": True, "max_num_batched_tokens": 24}


def answers(backend: str, prompts: list[str], tokens: int, **options: Any) -> tuple[list[tuple[int, ...]], int]:
    """Greedy tokens, and how many requests were preempted."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    with LLM("lsv-demo", attention_backend=backend, dtype="float32", max_model_len=128, **options) as llm:
        found = [answer.outputs[0].token_ids for answer in llm.generate(prompts, params, use_tqdm=False)]
        return found, llm.stats.preemptions_total


def test_sharing_cutting_and_preempting_change_no_token() -> None:
    wanted, _ = answers("cpu-paged", PROMPTS, 40, platform="cpu", max_num_seqs=1)
    found, preempted = answers(
        "torch-paged", PROMPTS, 40, platform="cpu", block_size=16, num_gpu_blocks_override=14, **SHARING
    )
    assert found == wanted
    assert preempted > 0, "the pool was not small enough to preempt anybody"


@pytest.mark.slow
def test_kernels_give_the_tokens_of_plain_torch() -> None:
    """On an emulated GPU, where Triton's interpreter runs them."""
    options: dict[str, Any] = {
        "platform": "cuda",
        "emulate": True,
        "triton_interpret": True,
        "enforce_eager": True,
        "max_num_seqs": 2,
    }
    wanted, _ = answers("torch-paged", PROMPTS[:2], 6, **options)
    assert answers("triton-paged", PROMPTS[:2], 6, **options)[0] == wanted
