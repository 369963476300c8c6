"""Prompt lookup: what followed the last tokens before."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lsv.config import Drafts
from lsv_base.errors import ConfigError
from lsv_drafters.ngram import NgramDrafter, NgramIndex, read_lengths
from lsv_runtime.drafts.drafter import Draftable


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ((1, 2, 3, 4, 5, 1, 2), [3, 4, 5]),
        ((1, 2, 3, 9, 1, 2, 4, 8, 8, 8, 1, 2), [4, 8, 8]),  # the latest
        ((5, 1, 2, 7, 9, 1, 2, 4, 5, 1, 2), [7, 9, 1]),  # the longest run
        ((1, 2, 3, 4), []),
        ((1, 3, 1), []),  # one token alone is too short
        ((7,), []),
        ((7, 7, 7), [7, 7, 7]),
        ((1, 2, 1, 2, 1, 2), [1, 2, 1]),
    ],
)
def test_what_followed_is_proposed(tokens: tuple[int, ...], expected: list[int]) -> None:
    index = NgramIndex(2, 4)
    index.extend(tokens)
    assert index.follow(3) == expected


def test_what_is_found_is_what_a_search_by_hand_finds() -> None:
    rng = random.Random(0)
    for _ in range(300):
        tokens = [rng.randrange(3) for _ in range(rng.randint(1, 30))]
        shortest = rng.randint(1, 3)
        longest = rng.randint(shortest, 5)
        expected: list[int] = []
        for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
            places = [end for end in range(size, len(tokens)) if tokens[end - size : end] == tokens[-size:]]
            if places:
                expected = tokens[places[-1] :][:1]
                break
        index = NgramIndex(shortest, longest)
        for token in tokens:
            index.extend([token])
        assert index.follow(1) == expected


def test_each_sequence_gets_as_many_as_it_wants() -> None:
    drafter = NgramDrafter(Drafts(drafter="ngram", most=5, options={"prompt_lookup_min": 1, "prompt_lookup_max": 2}))
    tokens = ids(1, 2, 3, 4, 1)
    assert drafter.propose([Draftable({}, tokens, 2, 3), Draftable({}, tokens, 2, 1)]) == [[2, 3, 4], [2]]


@pytest.mark.parametrize(
    ("given", "lengths"),
    [({}, (2, 5)), ({"prompt_lookup_max": 1}, (1, 1)), ({"prompt_lookup_min": 7}, (7, 7))],
)
def test_one_bound_does_not_contradict_the_other(given: dict[str, int], lengths: tuple[int, int]) -> None:
    assert read_lengths(given) == lengths


def test_bounds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="prompt_lookup_min=4 and prompt_lookup_max=2"):
        read_lengths({"prompt_lookup_min": 4, "prompt_lookup_max": 2})
