"""Whole experts of which each rank has some: what the ranks make of tokens adds up to what all experts make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn
from triton.runtime.interpreter import GridExecutor

from lsv.offers import KernelOffer, load_object
from lsv_base.errors import ConfigError
from lsv_quant import plugin as quant
from lsv_runtime.devices.collectives import BackendCommunicator, gloo
from lsv_runtime.devices.communicator import Group
from lsv_runtime.emulation.recording import Recording
from lsv_runtime.nn.moe import MoE
from lsv_runtime.ops import MixingKernel
from lsv_runtime.weights.codebook import CodedLinear
from lsv_runtime.weights.place import Weights
from lsv_runtime.worker.experts.balancer import ExpertBalancer
from lsv_testing.ops import SpreadRanks, check_rows
from lsv_triton import plugin
from lsv_triton.gemm.moe import route_rows

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy warns of what is not finite
MAKE = {offer.name: offer.load for offer in quant.lsv_quantizers()}
FORMATS = ("plain", "asym_int4_g32", "nf4", "fp8", "int8", "sym_int4_g32")
TOLERANCE = {"sym_int4_g32": 2**-5}
"""Of formats whose reference rounds rows, and the kernel does not."""

HIDDEN, INTERMEDIATE, EXPERTS, TOP = 64, 96, 6, 2
OWNERS = (1, 0, 0, 1, 0, 1)
EVERY = tuple(offer for offer in plugin.lsv_kernels() if offer.platform == "cuda")
EXACT = tuple(offer for offer in EVERY if not offer.load.startswith("lsv_triton.gemm.fp8:"))
"""Without those that round what experts are given."""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def spread_experts(
    name: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    owners: Sequence[int] = OWNERS,
    offers: tuple[KernelOffer, ...] = EXACT,
    top: int = TOP,
) -> SpreadRanks:
    def make(w: Weights) -> MoE:
        return MoE(w, HIDDEN, INTERMEDIATE, "silu", experts=len(owners), top=top, normalise=True)

    quantizer = load_object(MAKE[name])({}) if name in MAKE else None
    return SpreadRanks(make, owners, offers, dtype=dtype, quantizer=quantizer, device=device)


def assert_near(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert (found.float() - wanted.float()).abs().max() <= tolerance * wanted.float().abs().max()


@pytest.mark.row("F-282", "F-570")
@pytest.mark.parametrize("name", FORMATS)
def test_ranks_add_up_to_all_experts(name: str, device: torch.device) -> None:
    ranks = spread_experts(name, device)
    assert (ranks.line.op, ranks.line.implementation) == ("moe.spread", "lsv_triton.gemm.moe:GroupedExperts")
    for tokens in (1, 19):
        x = torch.randn(tokens, HIDDEN).to(device)
        assert_near(ranks(x), ranks.reference(x), TOLERANCE.get(name, 2e-6))


def test_experts_that_round_what_they_are_given(device: torch.device) -> None:
    """As ``test_moe`` has it, of which this is the sum of two parts."""
    ranks = spread_experts("fp8", device, offers=EVERY)
    assert ranks.line.implementation == "lsv_triton.gemm.fp8:Fp8Experts"
    x = torch.randn(19, HIDDEN).to(device)
    wanted = ranks.reference(x)
    assert 1e-4 < (ranks(x) - wanted).abs().max() / wanted.abs().max() < 1 / 16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype: torch.dtype, device: torch.device) -> None:
    """All experts are asked: which of two about as likely ones a router chooses hangs on the last bit."""
    ranks = spread_experts("asym_int4_g32", device, dtype, owners=(1, 0, 1), top=3)
    x = torch.randn(7, HIDDEN).to(device, dtype)
    assert_near(ranks(x), ranks.reference(x), 2**-5 if dtype == torch.bfloat16 else 2**-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("owners", [(0, 1), (1, 0, 0, 0, 0), (0, 0, 1) * 20], ids=len)
def test_many_tokens_and_ranks_with_one_expert(name: str, owners: tuple[int, ...], device: torch.device) -> None:
    ranks = spread_experts(name, device, owners=owners)
    for tokens in (1, 15, 70):
        x = torch.randn(tokens, HIDDEN).to(device)
        assert_near(ranks(x), ranks.reference(x), TOLERANCE.get(name, 3e-6))


@pytest.mark.parametrize("name", ["plain", "sym_int4_g32"])
def test_a_token_does_not_depend_on_the_others(name: str, device: torch.device) -> None:
    for module in spread_experts(name, device).modules:
        check_rows(module, (torch.randn(4, HIDDEN).to(device),))


@pytest.mark.parametrize("name", ["plain", "int8"])
def test_what_nobody_has_written_is_in_no_sum(name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts of other ranks leave their places in the products as they were."""
    ranks, empty = spread_experts(name, device), torch.empty

    def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = empty(*args, **kwargs)
        return made.fill_(torch.nan) if made.dtype.is_floating_point else made.fill_(101)

    monkeypatch.setattr(torch, "empty", poisoned)
    x = torch.randn(9, HIDDEN).to(device)
    assert_near(ranks(x), ranks.reference(x), 2e-6)


def test_a_rank_that_nobody_asks_adds_nothing(device: torch.device) -> None:
    ranks = spread_experts("plain", device)
    mine, other = ranks.modules
    x = torch.randn(3, HIDDEN).to(device)
    weights, experts = torch.full((3, 2), 0.5, device=device), torch.tensor([[1, 4]] * 3, device=device)
    assert isinstance(other.kernel, MixingKernel)
    assert isinstance(mine.kernel, MixingKernel)
    assert torch.equal(other.kernel.mix(x, weights, experts), torch.zeros_like(x))
    assert_near(mine.kernel.mix(x, weights, experts), ranks.reference.mix(x, weights, experts), 2e-6)
    nothing = other.kernel.mix(x[:0], weights[:0], experts[:0])
    assert nothing.shape == (0, HIDDEN)


@pytest.mark.parametrize(("tokens", "experts", "top"), [(1, 8, 2), (40, 4, 3), (9, 64, 1), (50, 2, 2)])
def test_only_pairs_with_experts_that_are_here_are_in_tiles(
    tokens: int, experts: int, top: int, device: torch.device
) -> None:
    """Wherever routers send them there are tiles enough, and those with work come first."""
    own = torch.randperm(experts)[: -(-experts // 3)]
    table = torch.full((experts,), -1).index_put((own,), torch.arange(len(own)))
    for chances in (torch.rand(tokens, experts), (table >= 0).float().expand(tokens, -1)):
        chosen = chances.topk(top, dim=-1).indices.sort(dim=-1).values
        route = route_rows(chosen.to(device), len(own), "product", table.to(device))
        pairs, seen, places = route.pairs.cpu(), [], table[chosen.flatten()]
        for expert, first, end in route.tiles.tolist():
            assert end - first <= route.rows
            if end > first:
                assert (places[pairs[first:end]] == expert).all()
                seen += pairs[first:end].tolist()
        assert sorted(seen) == (places >= 0).nonzero().flatten().tolist()
        busy = [end > first for _, first, end in route.tiles.tolist()]
        assert busy == sorted(busy, reverse=True)


@pytest.mark.row("F-282")
@pytest.mark.daily(name=["plain", "int8"])
@pytest.mark.parametrize("name", FORMATS)
def test_experts_that_have_moved_are_computed_where_they_are(name: str, device: torch.device) -> None:
    ranks = spread_experts(name, device)
    x = torch.randn(11, HIDDEN).to(device)
    before = [module(x) for module in ranks.modules]
    places = [tensor.data_ptr() for module in ranks.modules for tensor in module.buffers()]
    for one, other in ((0, 1), (5, 2), (0, 3)):
        ranks.exchange(one, other)
    assert not any(torch.equal(was, module(x)) for was, module in zip(before, ranks.modules, strict=True))
    assert_near(ranks(x), ranks.reference(x), TOLERANCE.get(name, 2e-6))
    assert places == [tensor.data_ptr() for module in ranks.modules for tensor in module.buffers()]


@pytest.mark.row("F-570")
def test_tokens_that_fill_a_step_up_are_nobodys(device: torch.device) -> None:
    ranks = spread_experts("plain", device)
    with torch.inference_mode():
        ranks.check_nobody(torch.randn(7, HIDDEN).to(device))


class Captured:
    """A step that is captured once and replayed: in a graph of the GPU's, or as ``Recording`` remembers it."""

    def __init__(self, step: Callable[[], torch.Tensor], device: torch.device) -> None:
        if device.type == "cpu":
            recording = Recording(outside=[(GridExecutor, "__call__")])
            with recording.capture():
                self.out = step()
            self.replay: Callable[[], None] = recording.replay
            return
        if device.type != "cuda":
            pytest.skip("graphs of this device are tested by its platform")
        for _ in range(2):
            step()  # kernels are compiled, and libraries set up, outside of graphs
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.out = step()
        self.replay = graph.replay


@pytest.mark.row("F-282")
@pytest.mark.daily(name=["plain", "int8"])
@pytest.mark.parametrize("name", ["plain", "sym_int4_g32", "int8"])
def test_a_captured_step_follows_experts_that_move(name: str, device: torch.device) -> None:
    """And other tokens, and counts what each replay computes."""
    ranks = spread_experts(name, device)
    x = torch.randn(8, HIDDEN).to(device)
    spreads = ranks.spreads
    for spread in spreads:
        spread.start_counting()
    with torch.inference_mode():
        captured = Captured(lambda: ranks(x), device)
        for exchange in (None, (0, 1), (3, 2), (1, 4)):
            if exchange is not None:
                ranks.exchange(*exchange)
            x.copy_(torch.randn(8, HIDDEN).to(device))
            for spread in spreads:
                spread.start_counting()
            captured.replay()
            assert_near(captured.out, ranks.reference(x), TOLERANCE.get(name, 2e-6))
            chosen = ranks.reference.router(x)[1].flatten().bincount(minlength=EXPERTS)
            for spread in spreads:
                assert torch.equal(spread.counts, chosen)


def balance(ranks: SpreadRanks, folder: Path, skew: Sequence[int]) -> list[Any]:
    """What both ranks answer once their experts have evened out such a load, over a group of processes."""

    met = Barrier(2)

    def run(rank: int) -> Any:
        module = ranks.modules[rank]
        device = module.device
        communicator = BackendCommunicator(Group("tp", (0, 1), rank, str(folder / "meeting")), gloo, device)
        try:
            met.wait(60)  # a rank that is refused at once would close what the other is still connecting to
            with torch.inference_mode():
                balancer = ExpertBalancer(nn.ModuleList([module]), communicator, device)
                balancer.count()
                assert module.spread is not None
                assert module.spread.counts is not None
                module.spread.counts.add_(torch.tensor(skew, device=device))
                return balancer.balance()
        except ConfigError as refusal:
            return refusal
        finally:
            communicator.close()

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


@pytest.mark.row("F-282")
@pytest.mark.daily(name=["plain", "int8"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_skewed_load_moves_experts_of_stacks(name: str, tmp_path: Path) -> None:
    ranks, x = spread_experts(name, torch.device("cpu")), torch.randn(9, HIDDEN)
    answers = balance(ranks, tmp_path, (900, 10, 20, 800, 30, 40))
    assert [answer["moved"] for answer in answers] == [2, 2]
    assert all(spread.owners != list(OWNERS) for spread in ranks.spreads)
    with torch.inference_mode():
        assert_near(ranks(x), ranks.reference(x), TOLERANCE.get(name, 2e-6))


@pytest.mark.parametrize("name", ["plain", "int8", "sym_int4_g32"])
def test_a_rank_with_one_expert_gives_it_away(name: str, tmp_path: Path) -> None:
    """Where it lies in its module, not in a stack."""
    ranks, x = spread_experts(name, torch.device("cpu"), owners=(0, 0, 1)), torch.randn(9, HIDDEN)
    assert [answer["moved"] for answer in balance(ranks, tmp_path, (600, 500, 10))] == [2, 2]
    with torch.inference_mode():
        assert_near(ranks(x), ranks.reference(x), TOLERANCE.get(name, 2e-6))


def test_experts_whose_zero_points_are_read_otherwise_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one rank all are whole numbers, which the products then multiply by; of the other they are not."""
    hold = CodedLinear.hold

    def whole(linear: CodedLinear, codes: torch.Tensor, scales: torch.Tensor, offsets: Any = None, *rest: Any) -> None:
        is_first = any(f".{number}." in linear.layer.name for number in range(3))
        hold(linear, codes, scales, -3 * scales if is_first and offsets is not None else offsets, *rest)

    monkeypatch.setattr(CodedLinear, "hold", whole)
    ranks = spread_experts("asym_int4_g32", torch.device("cpu"), owners=(0, 0, 0, 1, 1, 1))
    for refusal in balance(ranks, tmp_path, (900, 800, 20, 10, 30, 40)):
        assert isinstance(refusal, ConfigError)
        assert refusal.param == "enable_eplb"
