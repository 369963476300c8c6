"""Tokens of several replicas at the experts of all their ranks: threads over sockets."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from lsv_runtime.devices.collectives import BackendCommunicator, gloo
from lsv_runtime.devices.communicator import Group
from lsv_runtime.nn.exchange import TokenExchange

Made = TypeVar("Made")
WIDTH, TOP, NOBODY = 6, 2, 300


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
        found = exchange.gather(*given[replica], NOBODY)
        for mine, wanted in zip(found, everything, strict=True):
            assert mine.dtype == (wanted.dtype if wanted.is_floating_point() else torch.int32)
            assert torch.equal(mine, wanted)
        return exchange.add_up(found[0] * (1 + exchange.communicator.group.rank))

    found = on_all_ranks(tmp_path, compute, len(counts), each)
    factors = range(1, 1 + len(counts) * each)
    for rank, mine in enumerate(found):
        x = given[rank // each][0]
        alone = sum((x * factor).float() for factor in factors).to(dtype)
        assert torch.equal(mine, alone), "summed in rank order, whoever else has tokens"


@pytest.mark.row("F-570")
@pytest.mark.parametrize("captured", [False, True])
def test_all_give_as_many_as_the_largest_captured_step(captured: bool, tmp_path: Path) -> None:
    """Three replicas with 2 tokens in a step of 4, none, and 3; what was captured reads how many are real."""
    counts, sizes, size = (2, 0, 3), (4, 0, 4), 4

    def compute(exchange: TokenExchange, replica: int) -> torch.Tensor:
        x, weights, ids = tokens_of(replica, size, torch.bfloat16)
        assert exchange.begin(counts[replica], sizes[replica], ready=replica == 0)
        assert exchange.even == size
        given = counts[replica]
        if captured:  # as before the first step that is begun, and with what begin has left on the device
            exchange._sizes, given = None, size
        tokens, _, chosen = exchange.gather(x[:given], weights[:given], ids[:given], NOBODY)
        for other, count in enumerate(counts):
            part = slice(other * size, other * size + count)
            assert torch.equal(tokens[part], tokens_of(other, size, torch.bfloat16)[0][:count])
            assert torch.equal(chosen[part].long(), tokens_of(other, size, torch.bfloat16)[2][:count])
            assert (chosen[part.stop : (other + 1) * size] == NOBODY).all()
        mine = exchange.add_up(tokens)
        assert torch.equal(mine[: counts[replica]], (x[: counts[replica]].float() * len(counts)).bfloat16())
        return mine

    assert [len(mine) for mine in on_all_ranks(tmp_path, compute, 3, 1)] == ([4, 4, 4] if captured else [2, 0, 3])


def test_a_step_that_nobody_has_captured_is_not_filled_up(tmp_path: Path) -> None:
    def compute(exchange: TokenExchange, replica: int) -> tuple[int, int]:
        exchange.begin((2, 7)[replica], (4, 7)[replica], ready=replica == 0)
        return exchange.even, len(exchange.gather(*tokens_of(replica, (2, 7)[replica], torch.float32), NOBODY)[0])

    assert on_all_ranks(tmp_path, compute, 2, 1) == [(0, 11), (0, 11)]


def test_nobody_has_tokens(tmp_path: Path) -> None:
    assert on_all_ranks(tmp_path, lambda exchange, _: exchange.begin(0), 2, 1) == [False, False]


def test_a_model_that_makes_more_tokens_is_refused(tmp_path: Path) -> None:
    def compute(exchange: TokenExchange, replica: int) -> str:
        exchange.begin(3)
        with pytest.raises(RuntimeError) as refused:
            exchange.gather(*tokens_of(replica, 4, torch.float32), NOBODY)
        return str(refused.value)

    for said in on_all_ranks(tmp_path, compute, 2, 1):
        assert "experts were given 4 tokens and weights of torch.float32 in a step of 3 tokens" in said
