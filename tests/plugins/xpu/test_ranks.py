"""Two emulated devices give the tokens of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsv import LLM, SamplingParams
from lsv.testing.tiny import tiny


def answers(checkpoint: Path, ranks: int, platform: str) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": list(range(5, 5 + length))} for length in (1, 17, 40)]
    with LLM(
        str(checkpoint),
        platform=platform,
        emulate=platform == "xpu",
        tensor_parallel_size=ranks,
        dtype="float32",
        max_model_len=64,
        num_gpu_blocks_override=16,
        skip_tokenizer_init=True,
    ) as llm:
        return [answer.outputs[0].token_ids for answer in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.row("F-464", "F-583")
@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3_moe", marks=pytest.mark.slow)])
def test_two_ranks_give_the_tokens_of_one(family: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoint = tiny(family, tmp_path / family)
    assert answers(checkpoint, 2, "xpu") == answers(checkpoint, 1, "cpu")
    said = capfd.readouterr().err
    for rank in range(2):
        assert f"rank {rank} lsv_xpu.emulation.platform: EMULATED" in said
        assert f"rank {rank} lsv_xpu.links: oneCCL: CCL_TOPO_P2P_ACCESS=1" in said
        assert f"rank {rank} of 2, the {rank + 1}. of 2 here; they meet at /" in said
