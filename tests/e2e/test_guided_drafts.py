"""Drafts of answers of a given form: token for token those without drafts, greedy and drawn, whatever drafts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams, StructuredOutputsParams
from lsv.text.tokenizer import Tokenizer
from lsv_testing.fakes.drafter import ForcedDrafter
from lsv_testing.tiny import tiny

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["kind", "tall", "old"]}, "minItems": 2, "maxItems": 5},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TAGGED = {
    "type": "structural_tag",
    "structures": [{"begin": "<sum>", "schema": {"type": "integer", "maximum": 99, "minimum": 0}, "end": "</sum>"}],
    "triggers": ["<sum"],
}
FORMS: tuple[dict[str, Any], ...] = (
    {"json": PERSON},
    {"json_object": True},
    {"regex": r"([A-Z][a-z]{2,6} \d{4}; ){3}end"},
    {"choice": ["a most positive review", "a most negative review"]},
    {"grammar": 'root ::= "SELECT " c (", " c){3}\nc ::= "one" | "two"'},
    {"structural_tag": TAGGED},
)
PROMPTS = (
    'Nora is kind, tall, old. {"name": "Nora", "age": 31, "tags": ["kind", "tall"]} and again:',
    "SELECT one, two",
)
PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4, "block_size": 16}
"""As few streams as every platform has shapes for whose rows have drafts."""
DRAFTERS: Mapping[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 1},
    "suffix": {"method": "suffix", "suffix_decoding_min_token_prob": 0.0},
    "speculator": {"model": "lsv-demo-speculator"},
}
WORLDS: Mapping[str, dict[str, Any]] = {
    "together": {},
    "ahead": {},
    "few blocks": {"num_gpu_blocks_override": 14, "max_model_len": 160},
    "chunks": {"max_num_batched_tokens": 24},
}


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("model"), tokenizer=True)


def params() -> list[SamplingParams]:
    ways: tuple[dict[str, Any], ...] = (
        {"temperature": 0.0, "logprobs": 1},
        {"temperature": 0.8, "seed": 5, "top_p": 0.9, "ignore_eos": True, "frequency_penalty": 0.3},
    )
    return [
        SamplingParams(max_tokens=48, structured_outputs=StructuredOutputsParams(**form), **way)
        for form in FORMS
        for way in ways
    ]


def ask(model: str, **more: Any) -> tuple[list[Any], Any]:
    """What is said and how it ends, and the engine's figures. All requests have forms."""
    asked = params()
    with LLM(model, **{**PLAIN, **more}) as llm:
        answers = llm.generate([PROMPTS[place // 2 % 2] for place in range(len(asked))], asked, use_tqdm=False)
        said = [one.checked().outputs[0] for one in answers]
        return [(tuple(one.token_ids), one.text, one.finish_reason) for one in said], llm.stats


@cache
def plain(model: str) -> list[Any]:
    return ask(model)[0]


def check(model: str, drafter: dict[str, Any], **more: Any) -> None:
    drafting = {"num_speculative_tokens": 4, "adaptive": False, **drafter}
    found, stats = ask(model, speculative_config=drafting, **more)
    assert found == plain(model)
    assert 0 < stats.speculation.accepted <= stats.speculation.drafts


@pytest.mark.row("F-349", "F-360", "F-361")
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_forms_of_the_demo_model(drafter: str) -> None:
    more = {} if drafter != "speculator" else {"num_speculative_tokens": 3}
    check("lsv-demo", {**DRAFTERS[drafter], **more})


@pytest.mark.parametrize("world", WORLDS)
def test_forms_of_random_weights(world: str, random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if world == "ahead":
        plain(str(random_model))
        monkeypatch.setattr("lsv.resolve.choose_depth", lambda asked, capabilities, stages: 2)
    check(str(random_model), DRAFTERS["ngram"], **WORLDS[world])


@pytest.mark.two_ranks
@pytest.mark.parametrize(
    "axis", ["tensor_parallel_size", pytest.param("pipeline_parallel_size", marks=pytest.mark.slow)]
)
def test_masks_behind_drafts_reach_all_ranks(axis: str, random_model: Path) -> None:
    check(str(random_model), DRAFTERS["ngram"], **{axis: 2})


@pytest.mark.parametrize("luck", ["right", "wrong", "mixed"])
def test_drafts_of_known_luck(luck: Any, random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = str(random_model), Tokenizer.load(random_model)
    said = [(*tokenizer.encode(PROMPTS[place // 2 % 2]), *tokens) for place, (tokens, *_) in enumerate(plain(model))]
    monkeypatch.setattr("lsv_drafters.ngram.NgramDrafter", ForcedDrafter)
    ForcedDrafter.tell(said, luck)
    found, stats = ask(model, speculative_config={"method": "ngram", "num_speculative_tokens": 4, "adaptive": False})
    ForcedDrafter.tell((), "right")
    assert found == plain(model)
    tokens = sum(len(one[0]) for one in found)
    counts = stats.speculation
    if luck == "right":
        assert counts.accepted > max(0.9 * counts.drafts, tokens / 2)  # two answers to a prompt may begin alike
    elif luck == "wrong":
        assert counts.accepted == 0
    else:
        assert counts.accepted > 0
