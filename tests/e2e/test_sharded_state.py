"""A checkpoint saved for two ranks answers like the one it was made of, in one rank and in two."""

from __future__ import annotations

from pathlib import Path

import pytest

import lsv
from lsv.cli.main import main
from lsv_base.errors import ConfigError

pytestmark = pytest.mark.two_ranks

PROMPTS = ["What is a llama?", "Count to five."]
GREEDY = lsv.SamplingParams(temperature=0.0, max_tokens=12)


def answers(**options: object) -> list[list[int]]:
    with lsv.LLM(max_model_len=256, **options) as llm:  # type: ignore[arg-type]
        return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    assert main(["save-sharded-state", "lsv-demo", "-tp", "2", "-o", str(folder), "--max-file-size", "1000000"]) == 0
    return folder


@pytest.mark.row("F-001", "F-324", "F-933", "F-234", "F-691")
def test_a_saved_checkpoint_answers_like_its_source(saved: Path) -> None:
    assert len(list(saved.glob("model-rank-1-part-*.safetensors"))) > 1
    assert answers(model=str(saved), load_format="sharded_state") == answers()


@pytest.mark.slow
@pytest.mark.row("F-933")
def test_two_ranks_read_it_too(saved: Path) -> None:
    assert answers(model=str(saved), load_format="sharded_state", tensor_parallel_size=2) == answers()


@pytest.mark.row("F-022")
def test_the_offline_engine_saves_and_tokenises_as_others_do(tmp_path: Path) -> None:
    with lsv.LLM(max_model_len=256) as llm:
        engine = llm.llm_engine
        group = engine.get_tokenizer_group()
        assert group.encode(prompt="hello") == llm.get_tokenizer().encode("hello")
        engine.model_executor.save_sharded_state(path=str(tmp_path / "x"), pattern=None, max_size=5 << 30)
    assert (tmp_path / "x" / "model-rank-0-part-0.safetensors").is_file()
    assert (tmp_path / "x" / "tokenizer.json").is_file()


@pytest.mark.row("F-236")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load_format": "sharded_state", "model_loader_extra_config": {"patern": "x"}}, "patern, .* supports pattern"),
        ({"model_loader_extra_config": {"pattern": "x"}}, "load_format auto does not support"),
    ],
)
def test_options_that_a_format_does_not_know_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lsv.LLM(**options)  # type: ignore[arg-type]
