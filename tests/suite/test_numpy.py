"""Properties of numpy that tests rely on."""

from __future__ import annotations

import numpy as np


def test_products_of_a_row_have_the_same_bits_at_any_place() -> None:
    """In Triton's interpreter, as on GPUs: the libraries that numpy multiplies with must have been chosen for it."""
    random = np.random.default_rng(0)
    rows, weights = (random.standard_normal((32, 32), dtype=np.float32) for _ in range(2))
    product = rows @ weights
    for shift in range(1, len(rows)):
        assert np.array_equal(np.roll(rows, shift, axis=0) @ weights, np.roll(product, shift, axis=0))
