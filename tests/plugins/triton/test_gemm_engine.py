"""A whole model on an emulated GPU whose every product is one of Triton's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_testing.tiny import tiny

SAMPLING = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)


def answer(checkpoint: Path, **options: Any) -> tuple[tuple[int, ...], dict[str, str]]:
    """Greedy tokens, and what each op is bound to."""
    with LLM(
        str(checkpoint), dtype="float32", skip_tokenizer_init=True, max_model_len=32, max_num_seqs=1,
        max_num_batched_tokens=16, **{"enforce_eager": True, **options},
    ) as llm:  # fmt: skip
        (output,) = llm.generate([{"prompt_token_ids": list(range(20, 29))}], SAMPLING)
        assert llm.fit is not None
        return tuple(output.outputs[0].token_ids), {line.op: line.implementation for line in llm.fit.ops}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "quantization", "op"),
    [
        ("mixtral", "asym_int4_g32", "linear.coded"),
        ("qwen3_moe", "int8", "linear.int8"),
        ("qwen3_moe", "sym_int4_g32", "linear.int4"),
        ("mixtral", "fp8", "linear.coded"),
    ],
)
def test_answers_of_the_reference(
    family: str, quantization: str, op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a GPU that multiplies no 8-bit floats: rounded activations give other tokens than the reference.
    monkeypatch.setattr("lsv_triton.gemm.weights.ROUNDED", "a flag of no layer")
    checkpoint = tiny(family, tmp_path, num_hidden_layers=1)
    wanted, _ = answer(checkpoint, platform="cpu", quantization=quantization, reference_ops=True)
    found, bound = answer(checkpoint, platform="cuda", emulate=True, triton_interpret=True, quantization=quantization)
    assert found == wanted
    assert bound[op] == "lsv_triton.gemm.linear:TritonLinear"
    assert bound["moe"] == "lsv_triton.gemm.moe:GroupedExperts"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("quantization", [None, "mxfp4"])
def test_gpt_oss_interpreted_answers_as_the_cpu(quantization: str | None, ranks: int, tmp_path: Path) -> None:
    """Its experts have biases and a gate of their own, and ranks share the bias of the last layer."""
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "num_hidden_layers": 1}
    checkpoint = tiny("gpt_oss", tmp_path, **sizes)
    wanted, _ = answer(checkpoint, platform="cpu", reference_ops=True, quantization=quantization)
    found, bound = answer(
        checkpoint, platform="cuda", emulate=True, triton_interpret=True, tensor_parallel_size=ranks,
        quantization=quantization,
    )  # fmt: skip
    assert found == wanted
    assert bound["moe"] == "lsv_triton.gemm.moe:GroupedExperts"


@pytest.mark.row("F-282", "F-570")
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("processes")
def test_answers_of_ranks_that_have_whole_experts(tmp_path: Path) -> None:
    """In captured steps, which count what is chosen."""
    checkpoint = tiny("qwen3_moe", tmp_path, num_hidden_layers=1, num_experts=4, mlp_only_layers=[])
    wanted, _ = answer(checkpoint, platform="cpu", reference_ops=True)
    moving = {"enable_eplb": True, "eplb_step_interval": 1, "expert_map": "[1, 0, 0, 1]"}
    found, bound = answer(
        checkpoint, platform="cuda", emulate=True, triton_interpret=True, tensor_parallel_size=2,
        enable_expert_parallel=True, enforce_eager=False, **{"cuda.graph_rows": 1}, **moving,
    )  # fmt: skip
    assert found == wanted
    assert bound["moe.spread"] == "lsv_triton.gemm.moe:GroupedExperts"
