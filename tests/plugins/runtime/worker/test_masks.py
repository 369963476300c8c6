"""Masks of grammars in the sampler: nothing but what they allow is drawn, and other rows never notice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

from lsv.request.params import NO_TOKEN_LEFT
from lsv.scheduler.plan import Masks
from lsv_runtime.nn.sampling import Sampling
from lsv_runtime.worker.sampling.masks import RowMasks, read_masks
from lsv_runtime.worker.sampling.sampler import NOT_FINITE, accept_typical, draw_rows, why_failed
from lsv_runtime.worker.slots import Slot

MakeSlot = Callable[..., Slot]

VOCABULARY = 211


def mask_of(tokens: Iterable[int]) -> np.ndarray[Any, Any]:
    bits = np.zeros(-(-VOCABULARY // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def draw(logits: torch.Tensor, slots: list[Slot], masks: RowMasks) -> list[int]:
    return draw_rows(logits, slots, [len(slot.tokens) for slot in slots], Sampling(), masks).tolist()


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0])
def test_only_what_is_allowed_is_drawn(make_slot: MakeSlot, temperature: float, dtype: torch.dtype):
    slots = [make_slot(vocabulary=VOCABULARY, temperature=temperature, engine_seed=seed) for seed in range(64)]
    allowed = [{row, row + 64, 210} for row in range(64)]
    logits = random_logits(64).to(dtype)
    before = logits.clone()
    drawn = draw(logits, slots, {row: mask_of(tokens) for row, tokens in enumerate(allowed)})
    assert all(token in tokens for token, tokens in zip(drawn, allowed, strict=True))
    assert torch.equal(logits, before)


def test_the_best_of_the_allowed_is_the_greedy_one(make_slot: MakeSlot):
    logits = random_logits(1)
    (token,) = draw(logits, [make_slot(vocabulary=VOCABULARY, temperature=0.0)], {0: mask_of(range(50, 100))})
    assert token == 50 + int(logits[0, 50:100].argmax())


def test_rows_without_a_mask_draw_what_they_would(make_slot: MakeSlot):
    slots = [make_slot(vocabulary=VOCABULARY, engine_seed=seed) for seed in range(16)]
    logits = random_logits(16)
    plain = draw(logits, slots, {})
    mixed = draw(logits, slots, {row: mask_of([7]) for row in range(0, 16, 2)})
    assert mixed[1::2] == plain[1::2]
    assert mixed[::2] == [7] * 8


def test_a_mask_that_forbids_nothing_changes_no_draw(make_slot: MakeSlot):
    slots = [
        make_slot(vocabulary=VOCABULARY, engine_seed=seed, top_k=20, top_p=0.9, min_p=0.01, frequency_penalty=0.5)
        for seed in range(16)
    ]
    logits = random_logits(16)
    everything = {row: mask_of(range(VOCABULARY)) for row in range(16)}
    assert draw(logits, slots, everything) == draw(logits, slots, {})


def test_a_mask_meets_the_other_constraints(make_slot: MakeSlot):
    allowed = {0: mask_of([1, 2, 3])}

    def one(**params: Any) -> int:
        slot = make_slot(vocabulary=VOCABULARY, temperature=0.0, **params)
        return draw(torch.zeros(1, VOCABULARY), [slot], allowed)[0]

    assert one(logit_bias={3: 5.0, 4: 100.0}) == 3
    assert one(allowed_token_ids=(2, 4)) == 2
    assert one(bad_words=((1,),)) == 2
    assert one(stop_ids=(1, 2), min_tokens=1) == 3
    assert one(repetition_penalty=100.0, presence_penalty=2.0) == 1
    for params in ({"allowed_token_ids": (4, 5)}, {"bad_words": ((1,), (2,), (3,))}):
        assert why_failed([one(**params)], [make_slot()]) == {0: NO_TOKEN_LEFT}


def test_rows_fail_alone(make_slot: MakeSlot):
    logits = random_logits(3)
    logits[1] = float("nan")
    slots = [make_slot(vocabulary=VOCABULARY) for _ in range(3)]
    drawn = draw(logits, slots, {0: mask_of([]), 1: mask_of([5]), 2: mask_of([5])})
    assert why_failed(drawn, slots) == {0: NO_TOKEN_LEFT, 1: NOT_FINITE}
    assert drawn[2] == 5


def test_masks_are_those_of_rows_that_sample():
    words = np.stack([mask_of([1]), mask_of([2])])
    found = read_masks(Masks((2, 5), words.tobytes()), (0, 2, 3, 5))
    assert {place: row.tolist() for place, row in found.items()} == {1: words[0].tolist(), 3: words[1].tolist()}


def test_each_place_of_a_row_with_drafts_has_its_own_mask():
    words = np.stack([mask_of([token]) for token in range(5)])
    found = read_masks(Masks((1, 1, 1, 4, 6), words.tobytes()), (0, 1, 1, 1, 3, 3, 6))
    assert {place: row.tolist() for place, row in found.items()} == {
        1: words[0].tolist(), 2: words[1].tolist(), 3: words[2].tolist(), 6: words[4].tolist()
    }  # fmt: skip


@pytest.mark.parametrize(("masks", "accepted"), [({}, 3), ({0: [3, 5]}, 3), ({0: [4, 5]}, 5)])
def test_no_draft_is_typical_that_a_grammar_forbids(make_slot: MakeSlot, masks: dict[int, list[int]], accepted: int):
    slot = make_slot(vocabulary=VOCABULARY, temperature=1.0)
    slot.drafts = (3,)
    logits = torch.full((2, VOCABULARY), -9.0)
    logits[:, 3], logits[:, 5] = 9.0, 8.0
    allowed = {row: mask_of(tokens) for row, tokens in masks.items()}
    drawn = torch.tensor([5, 7])
    found = accept_typical(logits, drawn, [slot, slot], [4, 5], [0, 1], (0.09, 0.3), allowed)
    assert found.tolist() == [accepted, 7]
