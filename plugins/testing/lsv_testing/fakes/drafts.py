"""Drafters for a fake worker, of known luck."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lsv_testing.fakes import tokens as fake_tokens
from lsv_testing.fakes.slot import FakeSlot
from lsv_testing.fakes.worker import Draft


def right(slot: FakeSlot, most: int) -> Sequence[int]:
    """What the model will say, as long as nothing is withheld from it."""
    state, found = slot.states[-1], list[int]()
    for _ in range(most):
        found.append(fake_tokens.next_token(state))
        state = fake_tokens.fold(state, found[-1])
    return found


def wrong(slot: FakeSlot, most: int) -> Sequence[int]:
    """Never what the model will say."""
    return [(token + 1) % fake_tokens.VOCABULARY for token in right(slot, most)]


def mixed(seed: int) -> Draft:
    """Any number of drafts, right up to anywhere."""
    rng = random.Random(seed)

    def draft(slot: FakeSlot, most: int) -> Sequence[int]:
        good = rng.randint(0, most)
        return [*right(slot, good), *wrong(slot, most)[good:]][: rng.randint(0, most)]

    return draft
