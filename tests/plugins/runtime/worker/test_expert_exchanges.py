"""Which experts change ranks, given what was chosen."""

from __future__ import annotations

import random

import pytest
import torch

from lsv_runtime.weights.placement import Spread, even
from lsv_runtime.worker.experts.exchanges import choose_exchanges, rank_loads


def moved(owners: list[int], exchanges: list[tuple[int, int]]) -> list[int]:
    owners = list(owners)
    for one, other in exchanges:
        assert owners[one] != owners[other], "an exchange is between two ranks"
        owners[one], owners[other] = owners[other], owners[one]
    return owners


def test_a_hot_pair_on_one_rank_is_parted() -> None:
    loads, owners = [500, 480, 10, 20], [0, 0, 1, 1]
    exchanges = choose_exchanges(loads, owners, 2)
    assert exchanges == [(0, 3)], "500 and 510 are nearer to each other than 490 and 520"
    assert rank_loads(loads, moved(owners, exchanges), 2).tolist() == [500, 510]


@pytest.mark.parametrize(
    ("loads", "owners", "ranks"),
    [([0, 0, 0, 0], [0, 0, 1, 1], 2), ([7, 7, 7, 7], [0, 1, 0, 1], 2), ([90, 1, 1], [0, 1, 2], 3), ([5, 3], [0, 1], 2)],
)
def test_nothing_moves_where_that_would_not_help(loads: list[int], owners: list[int], ranks: int) -> None:
    assert choose_exchanges(loads, owners, ranks) == []


def test_little_is_not_worth_an_exchange() -> None:
    assert choose_exchanges([5000, 5000, 4990, 4990], [0, 0, 1, 1], 2) == []
    assert choose_exchanges([5000, 5000, 4500, 4500], [0, 0, 1, 1], 2) == [(0, 2)]


def test_chance_moves_nothing() -> None:
    drawn = random.Random(1)
    for tokens in (10, 1000, 100_000):
        chosen = drawn.choices(range(32), k=tokens)
        assert choose_exchanges([chosen.count(number) for number in range(32)], even(32, 2), 2) == []


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_loads_are_evened_out_and_ranks_keep_as_many_experts(ranks: int) -> None:
    drawn = random.Random(0)
    for _ in range(20):
        loads = [int(drawn.paretovariate(1.5) * 1000) for _ in range(64)]
        owners = list(even(64, ranks))
        exchanges = choose_exchanges(loads, owners, ranks)
        after = moved(owners, exchanges)
        assert [after.count(rank) for rank in range(ranks)] == [owners.count(rank) for rank in range(ranks)]
        fullest = int(rank_loads(loads, after, ranks).max())
        beside_the_hottest = sorted(loads)[: 64 // ranks - 1]
        best = max(sum(loads) / ranks, max(loads) + sum(beside_the_hottest))
        assert fullest <= rank_loads(loads, owners, ranks).max()
        assert fullest <= 1.1 * best, "no placement is much better"
        assert exchanges == choose_exchanges(loads, owners, ranks), "the same on every rank"


def test_every_rank_follows_an_exchange() -> None:
    ranks = [Spread((0, 0, 1, 1, 2), rank, torch.device("cpu")) for rank in range(3)]
    for one, other in ((1, 2), (4, 2), (0, 3)):
        for spread in ranks:
            spread.exchange(one, other)
    assert {tuple(spread.owners) for spread in ranks} == {(1, 1, 2, 0, 0)}
    assert [spread.places for spread in ranks] == [{3: 0, 4: 1}, {0: 1, 1: 0}, {2: 0}]
    for spread in ranks:
        assert spread.table.tolist() == [spread.places.get(number, -1) for number in range(6)]


def test_tokens_are_counted_only_when_that_is_asked_for() -> None:
    spread = Spread((0, 1, 1), 0, torch.device("cpu"))
    chosen = torch.tensor([[0, 2], [2, 1], [2, 0]])
    spread.count(chosen)
    assert spread.counts is None
    spread.start_counting()
    for _ in range(2):
        spread.count(chosen)
    assert spread.counts is not None
    assert spread.counts.tolist() == [4, 2, 6]
