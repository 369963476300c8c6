"""Drafts change no answer: not with any luck, at any number of them, with anything else that goes on in a step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_base.errors import ConfigError
from lsv_testing.fakes.drafter import ForcedDrafter
from lsv_testing.tiny import tiny

from .conftest import EIGHT_BITS

LENGTH, TOKENS, STOP = 160, 24, 77

PLAIN: dict[str, Any] = {
    "dtype": "float32", "max_model_len": LENGTH, "max_num_seqs": 16, "block_size": 16, "skip_tokenizer_init": True,
    "max_num_batched_tokens": 512,
}  # fmt: skip
WORLDS: dict[str, dict[str, Any]] = {
    "alone": {"max_num_seqs": 1},
    "together": {},
    "chunks": {"max_num_batched_tokens": 24},
    "no chunks": {"enable_chunked_prefill": False},
    "no prefixes": {"enable_prefix_caching": False},
    "few blocks": {"num_gpu_blocks_override": 11},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "asym_int4_g32"},
    "quantised cache": {"kv_cache_dtype": EIGHT_BITS},
    "plain torch": {"reference_ops": True, "attention_backend": "torch-paged"},
}


def greedy(**more: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True, "detokenize": False, **more})


PARAMS = (
    greedy(),
    greedy(logprobs=3),
    greedy(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, logprobs=1),
    greedy(temperature=0.8, seed=5, top_p=0.9, logprobs=0),
    greedy(temperature=1.0, seed=6, n=2, repetition_penalty=1.2),
    greedy(stop_token_ids=[STOP], logit_bias={STOP: 4.0}, min_tokens=6),
    greedy(allowed_token_ids=list(range(20, 60)), logprobs=2),
    greedy(max_tokens=2),
    greedy(max_tokens=1),
    greedy(max_tokens=None),
    greedy(prompt_logprobs=1, temperature=0.7, seed=1, top_k=5),
    greedy(max_tokens=40, frequency_penalty=1.0),
)


def prompts() -> list[list[int]]:
    """Of ragged lengths; half of them share a beginning."""
    rng = random.Random(3)
    shared = [rng.randrange(5, 250) for _ in range(34)]
    own = [[rng.randrange(5, 250) for _ in range(rng.randint(1, 40))] for _ in range(12)]
    return [(shared if place % 2 else []) + ids for place, ids in enumerate(own)]


def ask(checkpoint: Path, **options: Any) -> tuple[list[Any], Any]:
    """All that is told of the answers, and the engine's totals."""
    with LLM(str(checkpoint), **{**PLAIN, **options}) as llm:
        given = [{"prompt_token_ids": prompt} for prompt in prompts()]
        answers = llm.generate(given, list(PARAMS), use_tqdm=False)
        stats = llm.stats
    return [(answer.prompt_token_ids, one) for answer in answers for one in answer.outputs], stats


def sequences(answers: list[Any]) -> list[tuple[int, ...]]:
    return [(*prompt, *one.token_ids) for prompt, one in answers]


def check_same(found: list[Any], plain: list[Any]) -> None:
    for (_, one), (_, other) in zip(found, plain, strict=True):
        assert one.token_ids == other.token_ids
        assert (one.finish_reason, one.stop_reason) == (other.finish_reason, other.stop_reason)
        assert (one.logprobs is None) == (other.logprobs is None)
        for here, there in zip(one.logprobs or (), other.logprobs or (), strict=True):
            assert {token: entry.rank for token, entry in here.items()} == {
                token: entry.rank for token, entry in there.items()
            }
            for token, entry in here.items():
                assert entry.logprob == pytest.approx(there[token].logprob, abs=1e-4)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("qwen3", tmp_path_factory.mktemp("drafts") / "model", max_position_embeddings=512)


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> dict[str, list[Any]]:
    """The answers without drafts, by how weights and cache are kept."""
    return {"": ask(checkpoint)[0]}


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Prompt lookup is replaced by what knows the answers."""
    monkeypatch.setattr("lsv_drafters.ngram.NgramDrafter", ForcedDrafter)
    yield
    ForcedDrafter.tell((), "right")


def drafting(count: int, *, adaptive: bool = False) -> dict[str, Any]:
    return {"method": "ngram", "num_speculative_tokens": count, "adaptive": adaptive}


@pytest.mark.row("F-310", "F-360", "F-365")
@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("world", WORLDS)
def test_no_answer_changes(world: str, checkpoint: Path, plain: dict[str, list[Any]]) -> None:
    options = WORLDS[world]
    changes = bool({"quantization", "kv_cache_dtype", "reference_ops"} & options.keys())
    expected = ask(checkpoint, **options)[0] if changes else plain[""]
    ForcedDrafter.tell(sequences(expected), "mixed")
    found, stats = ask(checkpoint, **options, speculative_config=drafting(4))
    check_same(found, expected)
    assert stats.speculation.accepted > 0
    assert stats.speculation.accepted < stats.speculation.drafts
    assert (stats.preemptions_total > 0) == (world == "few blocks")


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("adaptive", [False, True])
def test_no_answer_changes_with_steps_in_flight(
    depth: int, adaptive: bool, checkpoint: Path, plain: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsv.resolve.choose_depth", lambda asked, capabilities, stages: depth)
    ForcedDrafter.tell(sequences(plain[""]), "mixed")
    found, stats = ask(checkpoint, speculative_config=drafting(3, adaptive=adaptive))
    check_same(found, plain[""])
    assert stats.speculation.rows > 0 or adaptive


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("count", [1, 2, 7])
def test_right_drafts_save_steps_and_wrong_ones_cost_none(
    count: int, checkpoint: Path, plain: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsv.resolve.choose_depth", lambda asked, capabilities, stages: 1)  # all steps can draft
    steps = {}
    for luck in ("right", "wrong"):
        ForcedDrafter.tell(sequences(plain[""]), luck)
        found, stats = ask(checkpoint, max_num_seqs=1, speculative_config=drafting(count))
        check_same(found, plain[""])
        steps[luck], speculation = stats.steps_total, stats.speculation
        assert speculation.accepted == (speculation.drafts if luck == "right" else 0)
    without = sum(len(one.token_ids) for _, one in plain[""])
    assert steps["wrong"] == without
    saved = sum((len(one.token_ids) - 1) - -(-(len(one.token_ids) - 1) // (count + 1)) for _, one in plain[""])
    assert steps["right"] == without - saved


@pytest.mark.row("F-304", "F-364")
def test_nobody_drafts_in_a_large_batch(checkpoint: Path, plain: dict[str, list[Any]]) -> None:
    found, stats = ask(checkpoint, speculative_config={**drafting(4), "disable_by_batch_size": 0})
    check_same(found, plain[""])
    assert stats.speculation.drafts == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "ngrams"}, "did you mean ngram"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "must be 1 to 128"),
        ({"method": "ngram", "lookup": 3}, "ngram has no 'lookup'"),
        ({"method": "ngram", "acceptance_method": "loose"}, "must be rejection_sampler or typical_acceptance_sampler"),
        ({"method": "ngram", "rejection_sample_method": "probabilistic"}, "others change answers"),
        ({"method": "draft_model"}, "needs a checkpoint"),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 2}, "no more than the second"),
        ({"num_speculative_tokens": 3}, "must say how to draft"),
        ({"method": "ngram", "quantization": "int8"}, "ngram has no 'quantization'"),
        ({"method": "suffix", "prompt_lookup_max": 3}, "suffix has no 'prompt_lookup_max'"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 2.5}, "must be a whole number"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 1.5}, "from 0 to 1"),
        ({"method": "ngram", "posterior_alpha": 0.5}, "is a term of typical_acceptance_sampler"),
        ({"method": "ngram", "max_model_len": 0}, "max_model_len must be a whole number from 1 on"),
    ],
)
def test_what_can_not_be_done_is_refused_by_name(given: dict[str, Any], words: str, checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="speculative_config") as refused:
        LLM(str(checkpoint), **PLAIN, speculative_config=given)
    assert words in str(refused.value)


@pytest.mark.parametrize(("name", "value"), [("num_speculative_tokens", 3), ("speculative_disable_by_batch_size", 4)])
def test_what_says_how_needs_what_drafts(name: str, value: int, checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name}: nothing drafts: say what does by --speculative-model"):
        LLM(str(checkpoint), **PLAIN, **{name: value})
