"""Philox against the known answers published with Random123 (kat_vectors), and the draw it feeds."""

import numpy as np
import pytest

from lsv_runtime.nn.philox import philox, uniform

KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> np.ndarray:
    return np.array([int(word, 16) for word in text.split()], np.uint32)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, answer: str) -> None:
    found = philox(words(counter).reshape(4, 1), words(key).reshape(2, 1))
    assert found[:, 0].tolist() == words(answer).tolist()


def test_philox_columns_are_independent() -> None:
    counters = np.stack([words(counter) for counter, _, _ in KNOWN_ANSWERS], axis=1)
    keys = np.stack([words(key) for _, key, _ in KNOWN_ANSWERS], axis=1)
    answers = np.stack([words(answer) for _, _, answer in KNOWN_ANSWERS], axis=1)
    assert np.array_equal(philox(counters, keys), answers)


def test_uniform_depends_on_seed_and_position_only() -> None:
    seeds, positions = [5, 6, -1, (1 << 64) - 1], [0, 7, 1 << 33, 3]
    together = uniform(seeds, positions)
    alone = [uniform([seed], [position])[0] for seed, position in zip(seeds, positions, strict=True)]
    assert together.tolist() == alone
    assert uniform([-1], [4])[0] == uniform([(1 << 64) - 1], [4])[0]


def test_uniform_covers_its_range_evenly() -> None:
    draws = uniform([11] * 4096, range(4096))
    assert draws.min() >= 0
    assert draws.max() < 1 << 32
    counts = np.bincount(draws * 16 >> 32, minlength=16)
    assert ((counts - 256) ** 2 / 256).sum() < 37.7  # chi-square, 15 degrees of freedom, p = 0.001


def test_seeds_and_positions_give_different_numbers() -> None:
    draws = uniform([seed for seed in range(100) for _ in range(100)], [*range(100)] * 100)
    assert len(set(draws.tolist())) > 9990
