"""Engines whose experts are spread over ranks: processes that share memory, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv.config import Topology
from lsv.errors import ConfigError
from lsv.llm import read_arguments
from lsv.resolve import resolve
from lsv.testing.tiny import tiny

PROMPTS = [{"prompt_token_ids": list(range(5, 5 + length))} for length in (3, 17, 40)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)


def run(path: Path, **options: Any) -> list[tuple[int, ...]]:
    given = {"dtype": "float32", "max_model_len": 128, "skip_tokenizer_init": True, "max_num_batched_tokens": 24}
    with LLM(str(path), enable_chunked_prefill=True, **given, **options) as llm:
        return [answer.outputs[0].token_ids for answer in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


@pytest.mark.row("F-282", "F-283")
@pytest.mark.slow
@pytest.mark.parametrize(("family", "stages"), [("qwen3_moe", 1), ("mixtral", 1), ("qwen3_moe", 2)])
def test_ranks_of_spread_experts_answer_as_one(family: str, stages: int, tmp_path: Path) -> None:
    path = tiny(family, tmp_path)
    spread = {"enable_expert_parallel": True, "all2all_backend": "allgather_reducescatter"}
    assert run(path, tensor_parallel_size=2, pipeline_parallel_size=stages, **spread) == run(path)


def topology(**given: Any) -> Topology:
    settings, loaded = read_arguments({"model": "lsv-demo", "enable_expert_parallel": True, **given})
    return resolve(settings, loaded).topology


def test_experts_are_spread_over_the_ranks_of_a_stage() -> None:
    assert topology(tensor_parallel_size=2, pipeline_parallel_size=3).expert == 2
    assert topology() == Topology(), "one rank has them all"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data_parallel_size": 2}, "enable_expert_parallel with data_parallel_size=2"),
        ({"load_format": "sharded_state"}, "checkpoints of sharded_state have a part of every expert"),
    ],
)
def test_what_can_not_be_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        topology(tensor_parallel_size=2, **given)


def test_experts_stay_cut_where_kernels_are_for_cut_ones_alone() -> None:
    settings, loaded = read_arguments(
        {"model": "lsv-demo", "enable_expert_parallel": True, "tensor_parallel_size": 2, "platform": "hpu",
         "emulate": True}
    )  # fmt: skip
    config = resolve(settings, loaded)
    assert config.topology.expert == 1
    assert any(reason.name == "enable_expert_parallel" for reason in config.reasons)
