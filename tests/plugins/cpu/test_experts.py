"""A mixture of experts in one native call, against the module that takes them one after the other in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from lsv.offers import load_object
from lsv_cpu import native, plugin
from lsv_quant import fp8
from lsv_quant.online import int4, int8, online_coded
from lsv_quant.online.online import Online
from lsv_runtime.devices.device import Device
from lsv_runtime.nn.moe import MoE
from lsv_runtime.ops import bind
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.weights.fill import Filler
from lsv_runtime.weights.place import TensorSlot
from lsv_runtime.weights.quantizer import Linear, LinearLayer, PerLayer, Quantizer, Unquantised
from lsv_runtime.worker.experts.balancer import held_tensors
from lsv_testing.ops import check_rows
from lsv_testing.tensors import TensorsSource, fill_module, place
from suite.instruction_sets import EMULATED, MACHINE

QUANTIZERS = {
    "plain": lambda config: Unquantised(),
    "int8": int8.make,
    "int8_g64": lambda config: Online("int8", partial(int8.Int8Linear, group=64)),
    "int4_g32": int4.make_32,
    "int4": int4.make_64,
    "fp8": fp8.make,
    "nf4": online_coded.make_nf4,
    "codes and offsets": online_coded.make_asym_int4_32,
}
FORMATS = pytest.mark.parametrize("name", QUANTIZERS)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
ISAS = (*MACHINE, *EMULATED)
HIDDEN, INNER = 128, 80


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def set_team(device: Device) -> Iterator[Callable[[int], None]]:
    library = native.library()
    assert library is not None
    yield lambda size: library.lsv_set_team(size, None)
    library.lsv_set_team(1, None)


class Given(nn.Module):
    """A router that only torch knows: as many weights and experts as rows, from a table by the row's first feature."""

    def __init__(self, weights: torch.Tensor, experts: torch.Tensor) -> None:
        super().__init__()
        self.weights, self.experts, self.top = weights, experts, experts.shape[1]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x[:, 0].long().clamp(0, len(self.experts) - 1)
        return self.weights[rows].to(x.dtype), self.experts[rows]


class Uneven(PerLayer):
    """The first expert in int8, the others in 4-bit codes."""

    name = "uneven"

    def choose(self, layer: LinearLayer) -> Quantizer:
        first = "experts.0." in ", ".join(layer.part_names)
        quantizer: Quantizer = QUANTIZERS["int8_g64" if first else "nf4"]({})
        return quantizer


class WithGate(DummySource):
    """Random weights, but for those of the router if they are given."""

    def __init__(self, slots: Sequence[TensorSlot], gate: torch.Tensor | None) -> None:
        super().__init__(slots)
        self._gate = gate

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        if self._gate is not None and name == "gate.weight":
            return self._gate[first:last].to(self.tensors()[name].dtype)
        return super().read(name, first, last)


def make(w: Any, experts: int, top: int, normalise: bool) -> MoE:
    return MoE(w, HIDDEN, INNER, "silu", experts=experts, top=top, normalise=normalise)


def pair(
    name: str | Quantizer,
    dtype: torch.dtype,
    *,
    experts: int = 6,
    top: int = 2,
    normalise: bool = True,
    gate: torch.Tensor | None = None,
    router: nn.Module | None = None,
) -> tuple[MoE, MoE]:
    """The experts as the cpu platform runs them and as plain torch does, with the same weights.

    ``gate`` are the router's own weights; ``router`` is another one.
    """
    quantizer: Quantizer = QUANTIZERS[name]({}) if isinstance(name, str) else name
    w, plain = (place(dtype=dtype, quantizer=quantizer) for _ in range(2))
    module, reference = (make(root, experts, top, normalise) for root in (w, plain))
    source = WithGate(w.declaration.slots, gate)
    fill_module(reference, plain, source)
    filler = Filler(module, w.declaration.slots)
    if router is not None:
        module.declared = module.router  # its weights are filled, and not used
        module.router = reference.router = router  # type: ignore[assignment]
    bind_native(module)
    for _ in range(2):
        filler.fill(source, w.device)
    return module, reference


def bind_native(module: MoE) -> None:
    (line,) = bind(module, tuple(plugin.lsv_kernels()), "cpu", lambda offer: load_object(offer.load))
    assert line.implementation == "lsv_cpu.experts:NativeExperts", line


def assert_near(module: MoE, reference: MoE, x: torch.Tensor) -> None:
    """Near to plain torch, and nearer to the loop over the same experts: either may round a code another way."""
    coded = any("int" in part.format for part in reference.modules() if isinstance(part, Linear))
    tolerance = max(TOLERANCE[x.dtype], 1e-2 if coded else 0)
    found, wanted = module(x), reference(x)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if len(x):
        error = (found.float() - wanted.float()).abs().max()
        assert error <= tolerance * wanted.float().abs().max()
        loop = (found.float() - module.reference(x).float()).abs().max()
        assert loop <= TOLERANCE[x.dtype] * wanted.float().abs().max()


@FORMATS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_format(name: str, dtype: torch.dtype, device: Device) -> None:
    module, reference = pair(name, dtype)
    for tokens in (0, 1, 7, 40, 200):
        assert_near(module, reference, torch.randn(tokens, HIDDEN).to(dtype))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["plain", "int8", "int8_g64", "int4", "fp8"])
def test_every_instruction_set(name: str, isa: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    if native.load(isa) is None:
        pytest.skip("no compiler")
    monkeypatch.setattr(native, "resolve_isa", lambda wanted: isa)
    for dtype in (torch.bfloat16, torch.float16):
        module, reference = pair(name, dtype)
        for tokens in (0, 1, 9, 70):
            assert_near(module, reference, torch.randn(tokens, HIDDEN).to(dtype))
    check_rows(module, (torch.randn(20, HIDDEN).to(dtype),))


@FORMATS
def test_a_row_is_the_same_in_every_batch_and_team(name: str, set_team: Callable[[int], None]) -> None:
    module, _ = pair(name, torch.bfloat16)
    x = torch.randn(200, HIDDEN).bfloat16()
    wanted = module(x)
    for members in (1, 2, 3):
        set_team(members)
        for first, last in ((0, 1), (0, 5), (3, 40), (0, 200), (199, 200)):
            assert torch.equal(module(x[first:last]), wanted[first:last]), (members, first, last)


def test_prompts_longer_than_the_working_memory(device: Device) -> None:
    module, _ = pair("plain", torch.float32)
    x = torch.randn(2100, HIDDEN)
    assert torch.equal(module(x)[2000:], module(x[2000:]))


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("experts", "top"), [(1, 1), (5, 1), (3, 3), (130, 2), (64, 8)])
def test_any_number_of_experts(experts: int, top: int, normalise: bool, device: Device) -> None:
    module, reference = pair("plain", torch.float32, experts=experts, top=top, normalise=normalise)
    for tokens in (1, 33):
        assert_near(module, reference, torch.randn(tokens, HIDDEN))


def test_formats_may_differ_between_experts(device: Device) -> None:
    module, reference = pair(Uneven(), torch.float32)
    for tokens in (1, 50):
        assert_near(module, reference, torch.randn(tokens, HIDDEN))


@FORMATS
def test_an_expert_is_what_its_tensors_hold(name: str, device: Device) -> None:
    """So experts move between ranks: what is written over one's tensors is computed, and nothing else is."""
    module, _ = pair(name, torch.bfloat16)
    x = torch.randn(9, HIDDEN).bfloat16()
    before = [expert(x) for expert in module.experts]
    one, other = (held_tensors(module.experts[number]) for number in (0, 3))
    assert [name for name, _ in one] == [name for name, _ in other]
    for (_, mine), (_, theirs) in zip(one, other, strict=True):
        kept = mine.clone()
        mine.copy_(theirs)
        theirs.copy_(kept)
    after = [expert(x) for expert in module.experts]
    for number, was in enumerate((3, 1, 2, 0, 4, 5)):
        assert torch.equal(after[number], before[was])
    loop = module.reference(x).float()
    assert (module(x).float() - loop).abs().max() <= TOLERANCE[x.dtype] * loop.abs().max(), (
        "the kernel of all has them, too"
    )


@pytest.mark.parametrize("tokens", [1, 5, 100])
def test_all_rows_to_one_expert(tokens: int, device: Device) -> None:
    router = Given(torch.tensor([[0.25, 0.5]]), torch.tensor([[4, 2]]))
    module, reference = pair("plain", torch.float32, router=router)
    assert_near(module, reference, torch.randn(tokens, HIDDEN))


def test_a_router_that_only_torch_knows_is_asked(set_team: Callable[[int], None]) -> None:
    experts = torch.stack([torch.randperm(6)[:3] for _ in range(20)])
    module, reference = pair("int8", torch.bfloat16, router=Given(torch.rand(20, 3), experts))
    x = torch.randn(60, HIDDEN).bfloat16()
    x[:, 0] = torch.arange(60) % 20
    for members in (1, 3):
        set_team(members)
        assert_near(module, reference, x)
        check_rows(module, (x[:20],))


def test_a_router_may_not_choose_what_is_not_there(device: Device) -> None:
    module, _ = pair("plain", torch.float32, router=Given(torch.ones(1, 2), torch.tensor([[1, 6]])))
    with pytest.raises(IndexError, match="not one of 6"):
        module(torch.randn(3, HIDDEN))


@pytest.mark.parametrize(("experts", "top"), [(70, 1), (12, 3), (130, 2)])
def test_among_equals_the_experts_of_the_reference_are_chosen(experts: int, top: int, device: Device) -> None:
    """Rounded logits are often equal. Here half of them are, and another expert would give another row altogether."""
    gate = torch.zeros(experts, HIDDEN)
    gate[:, 0] = torch.arange(experts) % 2
    module, reference = pair("plain", torch.bfloat16, experts=experts, top=top, gate=gate)
    x = torch.randn(40, HIDDEN).bfloat16()
    x[:, 0] = torch.arange(40) - 20
    assert_near(module, reference, x)


def test_what_is_not_a_number_stays_so_and_harms_nobody_else(device: Device) -> None:
    module, _ = pair("plain", torch.float32)
    x = torch.randn(9, HIDDEN)
    wanted = module(x)
    x[4, 7] = torch.nan
    found = module(x)
    others = torch.arange(9) != 4
    assert torch.equal(found[others], wanted[others])
    assert found[4].isnan().all()


@pytest.mark.parametrize("name", ["plain", "int8_g64"])
def test_shares_of_two_ranks_sum_up(name: str, device: Device) -> None:
    whole = place(quantizer=QUANTIZERS[name]({}))
    reference = make(whole, 6, 2, True)
    infos = DummySource(whole.declaration.slots).tensors()
    source = TensorsSource({name: torch.randn(info.shape) / 10 for name, info in infos.items()})
    fill_module(reference, whole, source)
    x, total = torch.randn(30, HIDDEN), torch.zeros(30, HIDDEN)
    for rank in range(2):
        w = place(rank=rank, size=2, quantizer=QUANTIZERS[name]({}))
        module = make(w, 6, 2, True)
        filler = Filler(module, w.declaration.slots)
        bind_native(module)
        filler.fill(source, w.device)
        total += module(x)
    wanted = reference(x)
    assert (total - wanted).abs().max() <= (1e-5 if name == "plain" else 2e-2) * wanted.abs().max()
