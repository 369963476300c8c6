"""A family's rules for its answers, against transformers' processors for Whisper."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from lsv.errors import BadRequest
from lsv.request.params import SamplingParams, TimeMarks, TokenRules
from lsv.worker.rules import Ruling
from lsv.worker.sampler import NO_TOKEN_LEFT, sample_rows
from lsv.worker.slots import Slot

MakeSlot = Callable[..., Slot]

PROMPT = (61, 62, 63)
END, NO_MARKS, FIRST, LATEST, VOCABULARY = 60, 66, 67, 12, 190
NEVER, NOT_BEGIN = (3, 5, 7, 61, 62, 63), (9, END)
MARKED = TokenRules(
    never=(*NEVER, NO_MARKS), not_begin=NOT_BEGIN, marks=TimeMarks(first=FIRST, text=END, latest=LATEST)
)


class Theirs:
    """The processors in the order in which transformers' Whisper has them."""

    def __init__(self) -> None:
        config = GenerationConfig(eos_token_id=END)
        config.no_timestamps_token_id = NO_MARKS
        config.max_initial_timestamp_index = LATEST
        self._processors: list[Any] = [
            SuppressTokensAtBeginLogitsProcessor(NOT_BEGIN, len(PROMPT)),
            SuppressTokensLogitsProcessor(NEVER),
            WhisperTimeStampLogitsProcessor(config, begin_index=len(PROMPT)),
        ]

    def scores(self, output: list[int], logits: torch.Tensor) -> torch.Tensor:
        ids = torch.tensor([[*PROMPT, *output]])
        scores = logits.unsqueeze(0)
        for processor in self._processors:
            scores = processor(ids, scores)
        return scores[0]


def logits_towards(marks: float, generator: torch.Generator) -> torch.Tensor:
    """Random ones, that lean towards or away from time marks."""
    logits = torch.randn(VOCABULARY, generator=generator) * 2
    logits[FIRST:] += marks
    return logits


@pytest.mark.parametrize("lean", [-6.0, -3.0, -2.0, -1.0, 0.0])
def test_time_marks_are_those_of_transformers(make_slot: MakeSlot, lean: float) -> None:
    theirs, generator = Theirs(), torch.Generator().manual_seed(int(lean))
    seen = set()
    for _ in range(12):
        output: list[int] = []
        while len(output) < 20 and END not in output:
            logits = logits_towards(lean, generator)
            expected = theirs.scores(output, logits)
            slot = make_slot(PROMPT, output, vocabulary=VOCABULARY, temperature=0.0, rules=MARKED)
            assert sample_rows(logits.unsqueeze(0), [slot]).tokens == [int(expected.argmax())]
            seen.add(math.isinf(expected[:END].max().item()))
            output.append(int(expected.argmax()))
    assert seen == {True, False}


def test_draws_keep_to_the_rules_too(make_slot: MakeSlot) -> None:
    theirs, generator = Theirs(), torch.Generator().manual_seed(1)
    for seed in range(30):
        output: list[int] = []
        for _ in range(15):
            logits = logits_towards(-2.0, generator)
            slot = make_slot(PROMPT, output, vocabulary=VOCABULARY, engine_seed=seed, temperature=3.0, rules=MARKED)
            (token,) = sample_rows(logits.unsqueeze(0), [slot]).tokens
            assert math.isfinite(theirs.scores(output, logits)[token])
            output.append(token)


def test_every_row_has_rules_of_its_own(make_slot: MakeSlot) -> None:
    logits = torch.zeros(4, VOCABULARY)
    logits[:, 3] = 2.0
    logits[:, 9] = 1.0
    logits[:, 100] = 0.5
    unmarked = TokenRules(never=(3,), not_begin=(9,))
    slots = [
        make_slot(PROMPT, output, vocabulary=VOCABULARY, temperature=0.0, rules=rules)
        for output, rules in (((), None), ((), unmarked), ((1,), unmarked), ((FIRST,), MARKED))
    ]
    assert sample_rows(logits, slots).tokens == [3, 100, 9, 9]


def test_rules_that_leave_nothing_fail_their_row(make_slot: MakeSlot) -> None:
    slot = make_slot(PROMPT, vocabulary=9, rules=TokenRules(never=tuple(range(20))))
    assert sample_rows(torch.zeros(2, 9), [slot, make_slot(PROMPT, vocabulary=9)]).failed == {0: NO_TOKEN_LEFT}


def test_marks_end_with_the_vocabulary() -> None:
    marks = TimeMarks(first=6, text=4, latest=99)
    ruling = Ruling(TokenRules(marks=marks), 9)
    assert [part["token"].tolist() for part in ruling.limits(make([]))] == [[6, 7, 8], [], []]
    assert ruling.limits(make([6, 0, 8]))[0]["token"].tolist() == [4, 5, 8]
    assert ruling.limits(make([6, 0, 8, 8, 1]))[0]["token"].tolist() == [6, 7, 8]
    assert not len(ruling.rivalry(make([6, 0, 8, 8, 1])))


def make(output: list[int]) -> Any:
    return torch.tensor(output, dtype=torch.int32).numpy()


def test_a_choice_of_tokens_beside_rules_is_refused() -> None:
    with pytest.raises(BadRequest, match="exclude each other"):
        SamplingParams(allowed_token_ids=(1,), rules=TokenRules(never=(2,)))
