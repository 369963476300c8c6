"""The sum over ranks in one launch has the bits of the sum in rank order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton

import lsv_models.plugin
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.devices.rank_sum import RankSum
from lsv_runtime.worker.load.bound import bind_ops
from lsv_runtime.worker.load.declared import declare
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config
from lsv_testing.tiny import tiny
from lsv_triton import plugin
from lsv_triton.rank_sum import SumRanks


@pytest.mark.parametrize("count", [1, 1000, 20000])
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
def test_bits(dtype: torch.dtype, ranks: int, count: int, device: torch.device) -> None:
    cut_off = triton.knobs.runtime.interpret and dtype == torch.bfloat16  # so whole numbers, whose sums are exact
    parts = torch.randn(ranks, count) * 100
    parts = (parts.clamp(-30, 30).round() if cut_off else parts).to(device, dtype)
    module = RankSum(ranks)
    found = SumRanks(module, module.spec()).forward(parts)
    assert found.dtype == dtype
    assert torch.equal(found, module.reference(parts))


class Pair(Communicator):
    """What a model of two ranks is declared with; nothing travels."""

    group = Group("tp", (0, 1), 0, "/nowhere")

    def __init__(self) -> None:
        self.ops = (RankSum(2),)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return torch.cat((x, x), dim)

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        return x

    def self_test(self) -> None:
        pass


def test_the_sum_of_a_group_is_bound_with_the_model(tmp_path: Path, device: torch.device) -> None:
    catalog, pair = catalog_of(plugin, lsv_models.plugin), Pair()
    config = engine_config(tiny("llama", tmp_path), "llama")
    declared = declare(config, catalog, communicator=pair)
    bound = {line.op: line.implementation for line in bind_ops(declared, catalog, "cuda", reference=False)}
    assert bound["sum_ranks"] == "lsv_triton.rank_sum:SumRanks"
    assert isinstance(pair.ops[0].kernel, SumRanks)
