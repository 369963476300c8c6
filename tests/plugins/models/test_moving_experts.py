"""Whole experts where a map says, and experts that change ranks: every rank then computes what one rank computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

import msgspec
import pytest
import torch

from lsv.config import EngineConfig, ExpertOptions, Topology
from lsv.plugins.catalog import Catalog
from lsv_base.errors import ConfigError
from lsv_cpu import plugin as cpu
from lsv_models import plugin
from lsv_quant import plugin as quant
from lsv_runtime.devices.collectives import BackendCommunicator, gloo
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.nn.moe import MoE
from lsv_runtime.weights.placement import Spread
from lsv_runtime.worker.experts.balancer import ExpertBalancer
from lsv_runtime.worker.load.bound import bind_ops
from lsv_runtime.worker.load.declared import Declared, declare
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config

HOST = torch.device("cpu")
EXPERTS = 4
SHAPE = {"num_experts": EXPERTS, "mlp_only_layers": []}
SKEW = (50, 900, 850, 40), (300, 10, 10, 280)
"""Tokens of each expert of two layers. Of (0, 1 | 2, 3) the first layer is even; of (1, 2 | 0, 3) it is not."""
T = TypeVar("T")


@pytest.fixture(scope="module")
def sources() -> Catalog:
    return catalog_of(plugin, quant, cpu)


def load(config: EngineConfig, catalog: Catalog, communicator: Communicator | None) -> Declared:
    declared = declare(config, catalog, communicator=communicator)
    bind_ops(declared, catalog, "cpu", reference=config.reference_ops)
    fill(declared, open_source(config, declared, catalog))
    return declared


def on_ranks(
    config: EngineConfig, catalog: Catalog, folder: Path, work: Callable[[Declared, Communicator], T], **experts: Any
) -> list[T]:
    """What two ranks make of the loaded model, of which they share the experts."""
    spread = msgspec.structs.replace(
        config, topology=Topology(tensor=2, expert=2), experts=ExpertOptions(**experts) if experts else None
    )
    met = Barrier(2)

    def run(rank: int) -> T:
        communicator = BackendCommunicator(Group("tp", (0, 1), rank, str(folder / "meeting")), gloo, HOST)
        try:
            met.wait(60)  # a rank that is refused at once would close what the other is still connecting to
            with torch.inference_mode():
                return work(load(spread, catalog, communicator), communicator)
        finally:
            communicator.close()

    with ThreadPoolExecutor(2) as ranks:
        return list(ranks.map(run, range(2)))


def mixtures(declared: Declared) -> list[tuple[MoE, Spread]]:
    found = [module for module in declared.model.modules() if isinstance(module, MoE)]
    return [(moe, moe.spread) for moe in found if moe.spread is not None]


def draw(tokens: int = 11) -> torch.Tensor:
    return torch.randn(tokens, 64, generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def compute(declared: Declared) -> list[torch.Tensor]:
    """What each layer's experts make of some tokens."""
    return [module(draw()) for module in declared.model.modules() if isinstance(module, MoE)]


def each_expert(declared: Declared) -> list[dict[int, torch.Tensor]]:
    """What each of a rank's experts makes of tokens, by layer and number."""
    return [
        {number: moe.experts[place](draw(3)) for number, place in spread.places.items()}
        for moe, spread in mixtures(declared)
    ]


def near(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(bool((mine - one).abs().max() <= 1e-5 * one.abs().max()) for mine, one in pairs)


MAPS = {"for all layers": [[1, 0, 1, 0]], "for each": [[1, 0, 0, 1], [0, 1, 1, 1]]}


@pytest.mark.row("F-282")
@pytest.mark.parametrize(("quantization", "kernels"), [(None, True), ("int8", True), (None, False)])
@pytest.mark.parametrize("given", MAPS)
def test_experts_are_where_the_map_says(given, quantization, kernels, sources, checkpoint, tmp_path):
    config = engine_config(
        checkpoint("qwen3_moe", **SHAPE), "qwen3_moe", quantization=quantization, reference_ops=not kernels
    )
    wanted = compute(load(config, sources, None))

    def work(declared: Declared, communicator: Communicator) -> tuple[list[list[int]], list[torch.Tensor]]:
        return [sorted(spread.places) for _, spread in mixtures(declared)], compute(declared)

    for rank, (held, found) in enumerate(on_ranks(config, sources, tmp_path, work, map=MAPS[given])):
        rows = MAPS[given] * 2 if len(MAPS[given]) == 1 else MAPS[given]
        assert held == [[number for number in range(EXPERTS) if row[number] == rank] for row in rows]
        assert near(found, wanted)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[0, 1, 1]], "expert 3 is missing: mixture 0 of this model has 4 experts, and the map has the ranks of 3"),
        ([[0, 1, 1, 0], [0, 1, 0, 1, 0]], "there is no expert 4: mixture 1 of this model has 4 experts"),
        ([[0, 1, 1, 0]] * 3, "a list for each of 3 mixtures of experts, and the model has 2"),
    ],
)
def test_maps_of_other_models_are_refused(given, message, sources, checkpoint, tmp_path):
    config = engine_config(checkpoint("qwen3_moe", **SHAPE), "qwen3_moe")
    with pytest.raises(ConfigError, match=message) as refused:
        on_ranks(config, sources, tmp_path, lambda *_: None, map=given)
    assert refused.value.param == "expert_map"


FORMATS = [None, "int8", "sym_int4", "fp8", "nf4", "asym_int4"]


@pytest.mark.row("F-282")
@pytest.mark.parametrize("quantization", FORMATS)
@pytest.mark.parametrize("kernels", [True, False])
def test_a_skewed_load_moves_the_right_experts(quantization, kernels, sources, checkpoint, tmp_path):
    """Their weights arrive bit by bit, in whatever form they are held."""
    path = checkpoint("qwen3_moe", **SHAPE, hidden_size=64, moe_intermediate_size=64)
    config = engine_config(path, "qwen3_moe", quantization=quantization, reference_ops=not kernels)

    def work(declared: Declared, communicator: Communicator) -> tuple[Any, ...]:
        balancer = ExpertBalancer(declared.model, communicator, HOST)
        before = each_expert(declared), compute(declared)
        balancer.count()
        for (_, spread), skew in zip(mixtures(declared), SKEW, strict=True):
            assert spread.counts is not None
            if communicator.group.rank == 0:  # which speaks for all
                spread.counts.add_(torch.tensor(skew))
        answer = balancer.balance()
        owners = [spread.owners for _, spread in mixtures(declared)]
        return owners, answer, before, (each_expert(declared), compute(declared))

    ranks = on_ranks(config, sources, tmp_path, work, map=[[1, 0, 0, 1]])
    for owners, answer, (_, before), (_, after) in ranks:
        assert owners == [[0, 1, 0, 1], [0, 1, 0, 1]], "1 and 2 are parted, and so are 0 and 3"
        assert answer == {"mean": 1220.0, "most": 1750 + 580, "left": 940 + 310, "moved": 4}
        assert near(after, before)
    for layer in range(2):
        was, now = ({n: x for rank in ranks for n, x in rank[when][0][layer].items()} for when in (2, 3))
        assert sorted(was) == sorted(now) == list(range(EXPERTS))
        assert all(torch.equal(was[number], now[number]) for number in was)


def test_the_routers_choice_is_counted(sources, checkpoint, tmp_path):
    config = engine_config(checkpoint("qwen3_moe", **SHAPE), "qwen3_moe")

    def work(declared: Declared, communicator: Communicator) -> list[tuple[list[int], list[int]]]:
        balancer = ExpertBalancer(declared.model, communicator, HOST)
        compute(declared)
        balancer.count()
        for moe, _ in mixtures(declared):
            moe(draw(40))
            moe.reference(draw(7))
        chosen = [torch.cat([moe.router(draw(n))[1].flatten() for n in (40, 7)]) for moe, _ in mixtures(declared)]
        counts = [spread.counts for _, spread in mixtures(declared)]
        return [
            (count.tolist(), ids.bincount(minlength=EXPERTS).tolist())
            for count, ids in zip(counts, chosen, strict=True)
            if count is not None
        ]

    for rank in on_ranks(config, sources, tmp_path, work):
        assert len(rank) == 2
        assert all(counted == chosen for counted, chosen in rank)


def test_experts_of_different_formats_do_not_move(sources, checkpoint, tmp_path):
    path = checkpoint("qwen3_moe", **SHAPE)
    plain = ("re:.*layers.1.mlp.experts.2.",)
    config = engine_config(path, "qwen3_moe", quantization="int8", quantization_ignore=plain)
    with pytest.raises(ConfigError, match="can't take each other's places: those of a layer are of different formats"):
        on_ranks(config, sources, tmp_path, lambda declared, ranks: ExpertBalancer(declared.model, ranks, HOST))
