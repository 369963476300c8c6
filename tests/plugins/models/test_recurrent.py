"""Recurrent and hybrid families give transformers' logits, whole, in chunks, in mixed batches and while decoding."""

from typing import Any

import pytest

from lsv.testing.model import check_model, engine_config

TOLERANCE = 1e-4
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mamba2": (
        "mamba2", "mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 16},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_family_equals_transformers(case, checkpoint, catalog):
    offer, family, shape = CASES[case]
    found = check_model(engine_config(checkpoint(family, **shape), offer), catalog, tolerance=TOLERANCE)
    print(f"\n{case:24}" + "  ".join(f"{one.schedule} {one.error:.1e}" for one in found))
