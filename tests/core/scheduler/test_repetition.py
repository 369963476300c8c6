"""Answers that only repeat themselves: what is found is what a search from the end finds, and it ends the answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from lsv import LLM, RepetitionDetectionParams, SamplingParams
from lsv.request.repetition import MAX_PATTERN
from lsv.scheduler.repetition import Repetition
from lsv_base.errors import BadRequest


def ends_with_repetitions(ids: Sequence[int], asked: RepetitionDetectionParams) -> bool:
    for size in range(max(1, asked.min_pattern_size), asked.max_pattern_size + 1):
        tail = list(ids[-size * asked.min_count :])
        if len(tail) == size * asked.min_count and tail == tail[:size] * asked.min_count:
            return True
    return False


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_a_search_from_the_end_finds(seed: int) -> None:
    draw = random.Random(seed)
    longest = draw.randint(1, 7)
    asked = RepetitionDetectionParams(
        max_pattern_size=longest, min_pattern_size=draw.randint(0, longest), min_count=draw.randint(2, 5)
    )
    found, ids = Repetition(asked), []
    for _ in range(400):
        ids.append(ids[-draw.randint(1, min(len(ids), 7))] if ids and draw.random() < 0.9 else draw.randint(0, 3))
        assert found.add(ids[-1]) == ends_with_repetitions(ids, asked)


@pytest.mark.parametrize(
    "given",
    [
        {"max_pattern_size": 3},
        {"max_pattern_size": 3, "min_count": 1},
        {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2},
        {"max_pattern_size": MAX_PATTERN + 1, "min_count": 2},
        {"max_pattern_size": -1, "min_count": 2},
        {"most": 3},
        "often",
    ],
    ids=str,
)
def test_what_is_unfit_is_refused_by_name(given: object) -> None:
    with pytest.raises(BadRequest, match="repetition_detection") as refused:
        SamplingParams(repetition_detection=given)
    assert refused.value.param == "repetition_detection"


def test_a_pattern_of_no_size_looks_for_nothing() -> None:
    assert SamplingParams(repetition_detection={}).repetition_detection is None
    assert SamplingParams(repetition_detection=RepetitionDetectionParams()).repetition_detection is None


def test_it_ends_an_answer_unless_that_is_too_short_or_ends_otherwise() -> None:
    torch = pytest.importorskip("torch")

    def repeat(output: list[int], logits: Any) -> Any:
        return torch.full_like(logits, -100.0).index_fill_(0, torch.tensor([11 + len(output) % 3]), 0.0)

    usual = SamplingParams(
        temperature=0.0,
        max_tokens=40,
        ignore_eos=True,
        logits_processors=[repeat],
        repetition_detection={"max_pattern_size": 5, "min_count": 3},
    )
    some = [
        usual,
        usual.replace(min_tokens=20),
        usual.replace(repetition_detection={"max_pattern_size": 2, "min_count": 3}),
        usual.replace(max_tokens=9),
        usual.replace(stop_token_ids=(12,), min_tokens=8),
    ]
    with LLM("lsv-demo", max_model_len=128) as llm:
        outputs = llm.generate(["Hi"] * len(some), some, use_tqdm=False)
    ends = [(len(one.token_ids), one.finish_reason, one.stop_reason) for (one,) in (out.outputs for out in outputs)]
    assert ends == [
        (9, "repetition", "repetition_detected"),
        (20, "repetition", "repetition_detected"),
        (40, "length", None),
        (9, "length", None),
        (8, "stop", 12),
    ]
