"""More than 128K positions on an emulated Gaudi, beyond those that the model was made for."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_testing.tiny import tiny

LENGTH, PROMPT = 135_168, 132_000
SHAPE: Mapping[str, Any] = {
    "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1,
    "num_key_value_heads": 1, "max_position_embeddings": 131_072, "rope_theta": 500_000.0,
}  # fmt: skip
BUCKETS: Mapping[str, Any] = {
    "hpu.prompt_seq_buckets": "1024",
    "hpu.prompt_ctx_buckets": "0,256,512,768,1056",
    "hpu.decode_bs_buckets": "1",
    "hpu.decode_block_buckets": "1056",
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.row("F-545", "F-944")
def test_a_prompt_of_more_than_128k_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks and buckets, with the tokens of the cpu platform, by the variable that the fork's recipe sets."""
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    checkpoint = str(tiny("llama", tmp_path / "llama", **SHAPE))
    rng = random.Random(3)
    prompt = {"prompt_token_ids": [rng.randrange(5, 250) for _ in range(PROMPT)]}
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    shared = {"max_model_len": LENGTH, "max_num_seqs": 1, "max_num_batched_tokens": 1024, "dtype": "float32"}
    answers = []
    for options in ({"platform": "cpu"}, {"platform": "hpu", "emulate": True, "block_size": 128, **BUCKETS}):
        with LLM(checkpoint, skip_tokenizer_init=True, **shared, **options) as llm:  # type: ignore[arg-type]
            (found,) = llm.generate([prompt], params, use_tqdm=False)
            assert llm.stats.unwarmed_total == 0
            answers.append(found.outputs[0].token_ids)
    assert answers[0] == answers[1]
