"""Whisper's rules for timestamps as a logits processor, against transformers' processors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers

from lsv.request.params import NO_TOKEN_LEFT, SamplingParams
from lsv.scheduler.plan import Begin
from lsv_multimodal import plugin
from lsv_multimodal.families.whisper.rules import Timestamps, WhisperRules
from lsv_multimodal.families.whisper.timestamps import TimestampRules
from lsv_runtime.worker.processing import Processors
from lsv_runtime.worker.sampling.sampler import sample_rows
from lsv_runtime.worker.slots import Slot
from lsv_testing.catalog import catalog_of
from lsv_testing.fakes.engine import engine_config
from lsv_testing.logits import GrowingHistory, check_logits_processor

MakeSlot = Callable[..., Slot]

PROMPT = (61, 62, 63)
END, NO_MARKS, FIRST, LATEST, VOCABULARY = 60, 66, 67, 12, 190
NEVER, NOT_BEGIN = (3, 5, 7, 61, 62, 63), (9, END)
TIMED = WhisperRules(
    never=(*NEVER, NO_MARKS),
    not_begin=NOT_BEGIN,
    timestamps=Timestamps(first=FIRST, text_end=END, max_initial=LATEST),
)


@pytest.fixture
def make_slot() -> MakeSlot:
    """A slot whose request keeps to ``rules``; other keywords are sampling parameters."""
    catalog = catalog_of(plugin)

    def make(
        output: Sequence[int] = (),
        *,
        rules: WhisperRules | None,
        vocabulary: int = VOCABULARY,
        seed: int = 0,
        **params: Any,
    ) -> Slot:
        asked = {} if rules is None else {"whisper": rules}
        sampling = SamplingParams(max_tokens=None, logits_processors=asked, **params)
        slot = Slot(Begin(0, (*PROMPT, *output), len(PROMPT), sampling, seed=seed), vocabulary)
        slot.processing = Processors(catalog, engine_config(), vocabulary, torch.device("cpu")).begin(asked, slot)
        return slot

    return make


class Theirs:
    """The processors in the order in which transformers' Whisper has them."""

    def __init__(self) -> None:
        config = transformers.GenerationConfig(eos_token_id=END)
        config.no_timestamps_token_id = NO_MARKS
        config.max_initial_timestamp_index = LATEST
        self._processors: list[Any] = [
            transformers.SuppressTokensAtBeginLogitsProcessor(NOT_BEGIN, len(PROMPT)),
            transformers.SuppressTokensLogitsProcessor(NEVER),
            transformers.WhisperTimeStampLogitsProcessor(config, begin_index=len(PROMPT)),
        ]

    def scores(self, output: list[int], logits: torch.Tensor) -> torch.Tensor:
        ids = torch.tensor([[*PROMPT, *output]])
        scores = logits.unsqueeze(0)
        for processor in self._processors:
            scores = processor(ids, scores)
        return scores[0]


def logits_towards(timestamps: float, generator: torch.Generator) -> torch.Tensor:
    """Random ones, that lean towards or away from timestamps."""
    logits = torch.randn(VOCABULARY, generator=generator) * 2
    logits[FIRST:] += timestamps
    return logits


@pytest.mark.parametrize("lean", [-6.0, -3.0, -2.0, -1.0, 0.0])
def test_timestamps_are_those_of_transformers(make_slot: MakeSlot, lean: float) -> None:
    theirs, generator = Theirs(), torch.Generator().manual_seed(int(lean))
    seen = set()
    for _ in range(12):
        output: list[int] = []
        while len(output) < 20 and END not in output:
            logits = logits_towards(lean, generator)
            expected = theirs.scores(output, logits)
            slot = make_slot(output, temperature=0.0, rules=TIMED)
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
            slot = make_slot(output, seed=seed, temperature=3.0, rules=TIMED)
            (token,) = sample_rows(logits.unsqueeze(0), [slot]).tokens
            assert math.isfinite(theirs.scores(output, logits)[token])
            output.append(token)


def test_every_row_has_rules_of_its_own(make_slot: MakeSlot) -> None:
    logits = torch.zeros(4, VOCABULARY)
    logits[:, 3] = 2.0
    logits[:, 9] = 1.0
    logits[:, 100] = 0.5
    untimed = WhisperRules(never=(3,), not_begin=(9,))
    slots = [
        make_slot(output, temperature=0.0, rules=rules)
        for output, rules in (((), None), ((), untimed), ((1,), untimed), ((FIRST,), TIMED))
    ]
    assert sample_rows(logits, slots).tokens == [3, 100, 9, 9]


def test_rules_that_leave_nothing_fail_their_row(make_slot: MakeSlot) -> None:
    slot = make_slot(vocabulary=9, rules=WhisperRules(never=tuple(range(20))))
    assert sample_rows(torch.zeros(2, 9), [slot, make_slot(vocabulary=9, rules=None)]).failed == {0: NO_TOKEN_LEFT}


def allowed(output: Sequence[int], logits: Sequence[float] = (0.0,) * 9) -> list[int]:
    """What may follow, in a vocabulary that ends in the middle of the timestamps."""
    processor = TimestampRules(engine_config(), 9, torch.device("cpu"))
    rules = WhisperRules(timestamps=Timestamps(first=6, text_end=4, max_initial=99))
    state = processor.begin(rules, GrowingHistory((), output))
    found = processor.apply(torch.tensor([logits]), [state])[0]
    return found.isfinite().nonzero().flatten().tolist()


def test_timestamps_end_with_the_vocabulary() -> None:
    assert allowed([]) == [6, 7, 8]
    assert allowed([6, 0, 8]) == [4, 5, 8]
    # behind the last timestamp comes no other, so text is not outweighed
    assert allowed([6, 0, 8, 8, 1]) == [0, 1, 2, 3, 4, 5]


def test_timestamps_outweigh_text_only_together() -> None:
    text, timestamps = [0.0] * 6, math.log(1 / 3)
    assert allowed([6, 0], [*text, *[timestamps - 0.01] * 3]) == [0, 1, 2, 3, 4, 5, 7, 8]
    assert allowed([6, 0], [*text, *[timestamps + 0.6] * 3]) == [7, 8]  # two of them: the first would go back


def test_it_is_a_sound_logits_processor() -> None:
    untimed = WhisperRules(never=(3,), not_begin=(9,))
    processor = TimestampRules(engine_config(), VOCABULARY, torch.device("cpu"))
    check_logits_processor(processor, [TIMED, untimed, TIMED, WhisperRules()])
