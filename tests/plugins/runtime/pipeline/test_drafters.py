"""Drafters beside the last of several stages: those that read states have them there, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_base.errors import ConfigError
from lsv_testing.fakes.drafter import ForcedDrafter
from lsv_testing.fakes.eagle import write_eagle, write_eagle3
from lsv_testing.fakes.medusa import write_medusa
from lsv_testing.tiny import tiny

pytestmark = pytest.mark.usefixtures("ranks_are_threads")

PROMPTS: Any = [{"prompt_token_ids": list(range(20, 20 + length)) * 2} for length in (3, 9, 20)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drafters")
    tiny("llama", path / "model")
    return path


def ask(folder: Path, **more: Any) -> tuple[list[Any], Any]:
    options = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 32, "skip_tokenizer_init": True}
    with LLM(str(folder / "model"), **options, **more) as llm:
        answers = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        return [one.checked().outputs[0].token_ids for one in answers], llm.stats.speculation


def speculative(folder: Path, method: str) -> dict[str, Any]:
    return {"method": method, "model": str(folder / method), "num_speculative_tokens": 3, "adaptive": False}


@pytest.mark.parametrize(
    ("method", "write"), [("eagle", write_eagle), pytest.param("medusa", write_medusa, marks=pytest.mark.slow)]
)
def test_states_of_the_last_stage_are_drafted_from(method: str, write: Any, folder: Path) -> None:
    write(folder / method)
    expected, alone = ask(folder, speculative_config=speculative(folder, method))
    found, staged = ask(folder, speculative_config=speculative(folder, method), pipeline_parallel_size=2)
    assert found == expected
    assert staged.drafts > 0
    assert (staged.drafts, staged.accepted) == (alone.drafts, alone.accepted)


def test_recurrent_layers_of_every_stage_go_on_behind_what_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of either stage: none but the last knows by itself which drafts were right."""
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    shape = {
        "layer_types": kinds, "num_hidden_layers": 3, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 16, "head_dim": 16,
    }  # fmt: skip
    tiny("qwen3_5_text", tmp_path / "model", **shape)
    expected, _ = ask(tmp_path)
    monkeypatch.setattr("lsv_drafters.ngram.NgramDrafter", ForcedDrafter)
    whole = [(*one["prompt_token_ids"], *answer) for one, answer in zip(PROMPTS, expected, strict=True)]
    monkeypatch.setattr(ForcedDrafter, "_answers", tuple(map(tuple, whole)))
    monkeypatch.setattr(ForcedDrafter, "luck", "mixed")
    drafting = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
    found, staged = ask(tmp_path, speculative_config=drafting, pipeline_parallel_size=2)
    assert found == expected
    assert 0 < staged.accepted < staged.drafts


def test_states_of_other_stages_are_refused_by_name(folder: Path) -> None:
    write_eagle3(folder / "eagle3")
    with pytest.raises(ConfigError, match="eagle3 reads states from between layers that other stages have"):
        ask(folder, speculative_config=speculative(folder, "eagle3"), pipeline_parallel_size=2)
