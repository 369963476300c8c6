"""Tokens of several replicas at the experts of all their ranks: threads over sockets."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from lsv.devices.collectives import BackendCommunicator, gloo
from lsv.nn.exchange import TokenExchange
from lsv.platform import Group

Made = TypeVar("Made")
WIDTH, TOP = 6, 2


def on_all_ranks(folder: Path, compute: Callable[[TokenExchange, int], Made], replicas: int, each: int) -> list[Made]:
    """What every rank computes, given its replica's number."""

    def run(rank: int) -> Made:
        group = Group("ep", tuple(range(replicas * each)), rank, str(folder / "experts"))
        communicator = BackendCommunicator(group, gloo, torch.device("cpu"))
        try:
            return compute(TokenExchange(communicator, each, torch.device("cpu")), rank // each)
        finally:
            communicator.close()

    with ThreadPoolExecutor(replicas * each) as ranks:
        return list(ranks.map(run, range(replicas * each)))


def tokens_of(replica: int, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(replica)
    x = torch.randn(count, WIDTH, generator=drawn).to(dtype)
    weights = torch.rand(count, TOP, generator=drawn).to(dtype)
    return x, weights, torch.randint(300, (count, TOP), generator=drawn)


@pytest.mark.row("F-570")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("counts", "each"), [((3, 5), 1), ((0, 4), 2), ((2, 0, 1), 1)])
def test_all_ranks_see_all_tokens_and_replicas_get_their_own_back(
    dtype: torch.dtype, counts: tuple[int, ...], each: int, tmp_path: Path
) -> None:
    given = [tokens_of(replica, count, dtype) for replica, count in enumerate(counts)]
    everything = [torch.cat(parts) for parts in zip(*given, strict=True)]

    def compute(exchange: TokenExchange, replica: int) -> torch.Tensor:
        assert exchange.begin(counts[replica])
        found = exchange.gather(*given[replica])
        for mine, wanted in zip(found, everything, strict=True):
            assert mine.dtype == wanted.dtype
            assert torch.equal(mine, wanted)
        return exchange.add_up(found[0] * (1 + exchange.communicator.group.rank))

    found = on_all_ranks(tmp_path, compute, len(counts), each)
    factors = range(1, 1 + len(counts) * each)
    for rank, mine in enumerate(found):
        x = given[rank // each][0]
        alone = sum((x * factor).float() for factor in factors).to(dtype)
        assert torch.equal(mine, alone), "summed in rank order, whoever else has tokens"


def test_nobody_has_tokens(tmp_path: Path) -> None:
    assert on_all_ranks(tmp_path, lambda exchange, _: exchange.begin(0), 2, 1) == [False, False]


def test_a_model_that_leaves_tokens_out_is_refused(tmp_path: Path) -> None:
    def compute(exchange: TokenExchange, replica: int) -> str:
        exchange.begin(3)
        with pytest.raises(RuntimeError) as refused:
            exchange.gather(*tokens_of(replica, 2, torch.float32))
        return str(refused.value)

    for said in on_all_ranks(tmp_path, compute, 2, 1):
        assert "experts were given 2 tokens and weights of torch.float32 in a step of 3 tokens" in said
