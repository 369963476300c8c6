"""What requests change about their logits: made once, bounded by the vocabulary, and true as the output grows."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from lsv.request.params import SamplingParams
from lsv.scheduler.plan import Begin
from lsv_runtime.worker.sampling.constraints import Penalties
from lsv_runtime.worker.sampling.edits import join_edits
from lsv_runtime.worker.sampling.sampler import choices_of
from lsv_runtime.worker.slots import Slot

VOCABULARY = 50


class Watched(tuple[int, ...]):
    """Token ids that note how often somebody walks through them."""

    walks: int

    def __new__(cls, ids: object) -> Watched:
        self = super().__new__(cls, ids)
        self.walks = 0
        return self

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()


def make_slot(params: SamplingParams, **given: object) -> Slot:
    return Slot(Begin(slot=0, ids=(1, 2, 3), prompt=3, params=params, **given), VOCABULARY)


@pytest.mark.parametrize("asked", ["allowed", "stops"])
def test_no_step_walks_through_a_list_of_ids(asked: str) -> None:
    ids = Watched((7, 5, 7, 9) * 100)
    params = SamplingParams(temperature=0.0, min_tokens=16 if asked == "stops" else 0)
    if asked == "allowed":
        params = params.replace(allowed_token_ids=ids)
    slot = make_slot(params, stop_ids=ids if asked == "stops" else ())
    entered = ids.walks
    for token in range(8):
        _, edits = choices_of([slot], [len(slot.tokens)], 1, VOCABULARY)
        assert edits["token"].tolist() == [5, 7, 9]
        slot.append(token)
    assert ids.walks == entered


def test_a_request_without_min_tokens_makes_nothing_of_its_stops() -> None:
    slot = make_slot(SamplingParams(logit_bias={4: 1.0}), stop_ids=(1, 2))
    assert choices_of([slot], [3], 1, VOCABULARY)[1]["token"].tolist() == [4]


@pytest.mark.parametrize("count", [1, VOCABULARY // 2, VOCABULARY // 2 + 1, VOCABULARY - 1, VOCABULARY])
def test_allowed_ids_take_no_more_edits_than_half_the_vocabulary(count: int) -> None:
    slot = make_slot(SamplingParams(allowed_token_ids=tuple(range(count)) * 3))
    choices, edits = choices_of([slot], [3], 1, VOCABULARY)
    left = set(edits["token"].tolist()) if choices["only"][0] else set(range(VOCABULARY)) - set(edits["token"].tolist())
    assert left == set(range(count))
    assert len(edits) <= VOCABULARY // 2


@pytest.mark.row("F-039", "F-040", "F-041")
@pytest.mark.parametrize("seed", range(3))
def test_penalties_follow_the_output(seed: int) -> None:
    chance = random.Random(seed)
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=0.25, frequency_penalty=0.5)
    prompt = np.array([chance.randrange(400) for _ in range(90)], np.int32)
    output: list[int] = [chance.randrange(400) for _ in range(chance.randrange(40))]
    penalties = Penalties(params, prompt, np.array(output, np.int32))
    for _ in range(300):
        output.append(chance.randrange(400))
        penalties.add(output[-1])
    anew = Penalties(params, prompt, np.array(output, np.int32))
    assert sorted(penalties.edits.tolist()) == anew.edits.tolist()


@pytest.mark.parametrize("said", [60, 61, 62, 63, 64])
def test_drafts_leave_no_trace_in_the_penalties_of_the_token_before_them(said: int) -> None:
    """Whether or not the table of penalties grows meanwhile."""
    slot = Slot(Begin(slot=0, ids=(1,), prompt=1, params=SamplingParams(frequency_penalty=1.0)), 400)
    for token in range(2, said + 1):
        slot.append(token)
    slot.drafts = (5, 300, 5)
    before, _, behind = (join_edits(slot.edits(drafts)) for drafts in range(3))
    counts = [dict(zip(edits["token"].tolist(), edits["second"].tolist(), strict=True)) for edits in (before, behind)]
    assert [one.get(5) for one in counts] == [1.0, 2.0]
    assert [one.get(300, 0.0) for one in counts] == [0.0, 1.0]


def test_edits_of_one_part_are_not_copied() -> None:
    slot = make_slot(SamplingParams(allowed_token_ids=(3, 4)))
    assert slot.constraints is not None
    parts = slot.constraints.edits(slot.output)
    assert join_edits(parts) is parts[0]
