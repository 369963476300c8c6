"""Drafts on models with recurrent layers change no answer: a state goes on behind the last token that stands."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_testing.fakes.drafter import ForcedDrafter
from lsv_testing.fakes.eagle import write_eagle
from lsv_testing.tiny import tiny
from suite.recurrent import FAMILIES

LENGTH, TOKENS = 160, 24
PLAIN: dict[str, Any] = {
    "dtype": "float32", "max_model_len": LENGTH, "max_num_seqs": 8, "block_size": 16, "skip_tokenizer_init": True,
    "max_num_batched_tokens": 512, "num_gpu_blocks_override": 400, "enable_prefix_caching": True,
}  # fmt: skip
FAST = ("qwen3_next", "alone", "chunks", "few blocks", "int8")
"""The families and worlds that every run looks at."""
WORLDS: dict[str, dict[str, Any]] = {
    "alone": {"max_num_seqs": 1},
    "chunks": {"max_num_batched_tokens": 24},
    "no prefixes": {"enable_prefix_caching": False},
    "few blocks": {"num_gpu_blocks_override": 18},
    "int8": {"quantization": "int8"},
    "plain torch": {"reference_ops": True, "attention_backend": "torch-paged"},
}


def chosen(**more: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True, "detokenize": False, **more})


PARAMS = (
    chosen(),
    chosen(temperature=0.8, seed=5, top_p=0.9),
    chosen(temperature=1.0, seed=6, n=2, repetition_penalty=1.2),
    chosen(stop_token_ids=[77], logit_bias={77: 4.0}, min_tokens=6),
    chosen(max_tokens=2),
    chosen(max_tokens=60, frequency_penalty=1.0),
    chosen(logprobs=2),
    chosen(max_tokens=40),
)


def prompts() -> list[list[int]]:
    """Of ragged lengths; half of them share a beginning."""
    rng = random.Random(3)
    shared = [rng.randrange(5, 250) for _ in range(34)]
    own = [[rng.randrange(5, 250) for _ in range(rng.randint(1, 40))] for _ in PARAMS]
    return [(shared if place % 2 else []) + ids for place, ids in enumerate(own)]


def ask(folder: Path, **options: Any) -> tuple[list[tuple[int, ...]], Any]:
    """The answers behind their prompts, and the engine's totals."""
    given = [{"prompt_token_ids": prompt} for prompt in prompts()]
    with LLM(str(folder), **{**PLAIN, **options}) as llm:
        answers = llm.generate(given, list(PARAMS), use_tqdm=False)
        stats = llm.stats
    return [(*one.prompt_token_ids, *answer.token_ids) for one in answers for answer in one.checked().outputs], stats


def drafting(method: str = "ngram", **more: Any) -> dict[str, Any]:
    return {"method": method, "num_speculative_tokens": 4, "adaptive": False, **more}


def fast_first(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in names]


@pytest.fixture(scope="module", params=fast_first(FAMILIES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A checkpoint and what it answers without drafts."""
    return _make(request.param, tmp_path_factory.mktemp("recurrent"))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    return _make("qwen3_next", tmp_path_factory.mktemp("hybrid"))


def _make(family: str, folder: Path) -> tuple[Path, list[Any]]:
    path = tiny(family, folder / family, **FAMILIES[family])
    return path, ask(path)[0]


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Prompt lookup is replaced by what knows the answers."""
    monkeypatch.setattr("lsv_drafters.ngram.NgramDrafter", ForcedDrafter)
    yield
    ForcedDrafter.tell((), "right")


def check(folder: Path, expected: list[Any], **options: Any) -> Any:
    found, stats = ask(folder, **options)
    assert found == expected
    assert 0 < stats.speculation.accepted < stats.speculation.drafts
    return stats


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_family_answers_otherwise(
    depth: int, model: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plain = model
    monkeypatch.setattr("lsv.resolve.choose_depth", lambda asked, capabilities, stages: depth)
    ForcedDrafter.tell(plain, "mixed")
    check(folder, plain, speculative_config=drafting())


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("world", fast_first(WORLDS))
def test_no_answer_changes_beside_other_features(world: str, hybrid: tuple[Path, list[Any]]) -> None:
    folder, plain = hybrid
    options = WORLDS[world]
    changes = bool({"quantization", "reference_ops"} & options.keys())
    expected = ask(folder, **options)[0] if changes else plain
    ForcedDrafter.tell(expected, "mixed")
    stats = check(folder, expected, **options, speculative_config=drafting())
    assert stats.prefix_hits_total > 0 or world in ("no prefixes", "few blocks")


@pytest.mark.slow
@pytest.mark.two_ranks
def test_every_rank_keeps_the_states_that_stand(hybrid: tuple[Path, list[Any]]) -> None:
    folder, _ = hybrid
    alone, _ = ask(folder, tensor_parallel_size=2)
    found, stats = ask(folder, tensor_parallel_size=2, speculative_config=drafting(prompt_lookup_min=1))
    assert found == alone
    assert stats.speculation.drafts > 0


@pytest.mark.parametrize("method", ["suffix", "draft_model", "eagle"])
def test_other_drafters_change_no_answer(method: str, hybrid: tuple[Path, list[Any]], tmp_path: Path) -> None:
    folder, plain = hybrid
    named: dict[str, Any] = {}
    if method == "eagle":
        write_eagle(tmp_path / "heads")
        named = {"model": str(tmp_path / "heads")}
    elif method == "draft_model":
        named = {"model": str(tiny("llama", tmp_path / "draft"))}
    found, stats = ask(folder, speculative_config=drafting(method, **named))
    assert found == plain
    assert stats.speculation.drafts > 0 or method == "suffix"
