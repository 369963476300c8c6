"""Whole layers of a model cut over two ranks, which exchange their results inside the native call."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_testing.tiny import tiny

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},  # biases are added to sums, once
    "qwen3_moe": {"hidden_size": 128},
}


@pytest.mark.parametrize("family", SHAPES)
def test_two_ranks_answer_as_one(family: str, tmp_path: Path) -> None:
    checkpoint, draw = tiny(family, tmp_path, **SHAPES[family]), random.Random(3)
    prompts = [{"prompt_token_ids": draw.choices(range(250), k=count)} for count in (70, 5, 33)]
    params, answers = SamplingParams(temperature=0, max_tokens=16, logprobs=1), []
    options = {"dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 128, "max_num_batched_tokens": 32}
    for ranks in (1, 2):
        with LLM(str(checkpoint), tensor_parallel_size=ranks, **options) as llm:
            layer = next(line for line in llm.fit.ops if line.op == "layer")
            assert layer.implementation == "lsv_cpu.layer:FusedLayer"
            outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
        answers.append([(list(output.token_ids), output.cumulative_logprob) for output in outputs])
    for (tokens, logprob), (other_tokens, other_logprob) in zip(*answers, strict=True):
        assert tokens == other_tokens
        assert logprob == pytest.approx(other_logprob, abs=2e-3)
