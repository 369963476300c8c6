"""Which of the tokens sampled behind drafts are the answer, and that they have the model's distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lsv_runtime.drafts.drafter import verify
from lsv_runtime.nn import sample_ops
from lsv_runtime.nn.philox import uniform

DRAWS, WORDS = 100_000, 6
CRITICAL = 66.62
"""Of the chi-square distribution with 35 degrees of freedom: exceeded once in a thousand times."""


@pytest.mark.parametrize(
    ("drafts", "sampled", "kept"),
    [
        ((), (7,), (7,)),
        ((7,), (7, 8), (7, 8)),
        ((7,), (6, 8), (6,)),
        ((7, 8, 9), (7, 8, 5, 4), (7, 8, 5)),
        ((7, 8, 9), (7, 8, 9, 1), (7, 8, 9, 1)),
        ((7, 8), (5, 8, 9), (5,)),
        ((7, 8), (-1, 8, 9), ()),
        ((7, 8), (7, -2, 9), (7,)),
        ((7, 8), (5, -2, 9), (5,)),
    ],
)
def test_tokens_count_up_to_the_first_that_was_not_drafted(
    drafts: tuple[int, ...], sampled: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    assert verify(drafts, sampled) == kept


def test_two_tokens_have_the_distribution_of_the_model() -> None:
    """Of a chain over six words, with one draft behind a first token that is always the same."""
    probabilities = torch.rand((WORDS, WORDS), generator=torch.Generator().manual_seed(1)).double() + 0.05
    probabilities /= probabilities.sum(dim=-1, keepdim=True)
    draft = 2

    def sample(rows: torch.Tensor, seeds: range, position: int) -> torch.Tensor:
        weights = sample_ops.weigh(rows.log().float(), torch.full((len(rows),), sample_ops.rate(1.0)))
        return sample_ops.draw(weights, torch.from_numpy(uniform(list(seeds), [position] * len(seeds))))

    seeds = range(DRAWS)
    first = sample(probabilities[0].expand(DRAWS, -1), seeds, 10)
    behind = sample(probabilities[draft].expand(DRAWS, -1), seeds, 11)
    later = sample(probabilities[first], seeds, 11)
    pairs = np.zeros((WORDS, WORDS))
    accepted = 0
    for one, two, three in zip(first.tolist(), behind.tolist(), later.tolist(), strict=True):
        kept = verify((draft,), (one, two))
        accepted += len(kept) - 1
        pairs[one, kept[1] if len(kept) > 1 else three] += 1
    expected = DRAWS * (probabilities[0].unsqueeze(-1) * probabilities).numpy()
    assert float(((pairs - expected) ** 2 / expected).sum()) < CRITICAL
    chance = float(probabilities[0, draft])
    assert abs(accepted / DRAWS - chance) < 4 * (chance * (1 - chance) / DRAWS) ** 0.5
