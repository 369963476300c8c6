"""Experts that are computed together, against the module that takes them one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from lsv.offers import KernelOffer, load_object
from lsv_base.errors import CheckpointError
from lsv_models.sparse.gpt_oss import ClampedExpert
from lsv_quant import fp8
from lsv_quant.online import int4, int8, online_coded
from lsv_runtime.adapters.experts import attach_to
from lsv_runtime.adapters.shares import Share
from lsv_runtime.emulation.recording import Recording
from lsv_runtime.nn.model import ActiveAdapters
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.routers import ScoredRouter
from lsv_runtime.ops import bind
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.weights.fill import Filler
from lsv_runtime.weights.quantizer import LinearLayer, PerLayer, Quantizer, Unquantised
from lsv_runtime.worker.transfer import send_adapters
from lsv_testing.ops import check_rows
from lsv_testing.tensors import fill_module, place
from lsv_triton import plugin
from lsv_triton.gemm.moe import GroupedExperts, choose_experts, route_rows
from lsv_triton.gemm.weights import Stack
from lsv_triton.layers.activation import KINDS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy warns of what is not finite
QUANTIZERS: Mapping[str, Any] = {
    "plain": lambda config: Unquantised(),
    "asym_int4": online_coded.make_asym_int4_32,
    "nf4": online_coded.make_nf4,
    "fp8": fp8.make,
    "int8": int8.make,
    "sym_int4": int4.make_32,
}
TOLERANCE = {"sym_int4": 2**-5}
"""Of formats whose reference rounds rows, and the kernel does not."""

HIDDEN, INTERMEDIATE = 64, 96
OFFERS = tuple(offer for offer in plugin.lsv_kernels() if not offer.load.startswith("lsv_triton.gemm.fp8:"))
"""Without those that round what experts are given."""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


class Uneven(PerLayer):
    """The first format whose key is in a layer's name."""

    name = "uneven"

    def __init__(self, formats: Mapping[str, str]) -> None:
        self._formats = formats

    def choose(self, layer: LinearLayer) -> Quantizer:
        name = ", ".join(layer.part_names)
        quantizer: Quantizer = QUANTIZERS[next(format for key, format in self._formats.items() if key in name)]({})
        return quantizer


def make(w: Any, experts: int, top: int, activation: str = "silu") -> MoE:
    return MoE(w, HIDDEN, INTERMEDIATE, activation, experts=experts, top=top, normalise=True)


def make_clamped(w: Any, experts: int, top: int) -> MoE:
    """Experts of gpt-oss: a gate of their own, and biases."""
    sizes: Any = SimpleNamespace(hidden_size=HIDDEN, intermediate_size=INTERMEDIATE)
    return MoE(
        w, HIDDEN, INTERMEDIATE, "silu", experts=experts, top=top,
        expert=lambda place: ClampedExpert(place, sizes, alpha=1.702, limit=0.5),
    )  # fmt: skip


EXPERTS_OF: Mapping[str, Any] = {
    **{name: partial(make, activation=name) for name in KINDS if name != "clamped_swiglu"},
    "clamped_swiglu": make_clamped,
}
"""Layers of experts by the activation that they compute."""


def route_by_sigmoid(module: MoE, w: Any) -> MoE:
    """The module with a router that no kernel knows."""
    module.router = ScoredRouter(w / "other", HIDDEN, len(module.experts), 2, normalise=True, scores="sigmoid")
    return module


def test_a_router_that_no_kernel_knows_is_asked(device: torch.device) -> None:
    w, plain = (place(device=device) for _ in range(2))
    module, reference = (route_by_sigmoid(make(one, 5, 2), one) for one in (w, plain))
    bind(module, tuple(plugin.lsv_kernels()), "xpu", lambda offer: load_object(offer.load))
    assert isinstance(module.kernel, GroupedExperts)
    for one, slots in ((module, w), (reference, plain)):
        used = [slot for slot in slots.declaration.slots if not slot.pieces[0].name.startswith("gate.")]
        Filler(one, used).fill(DummySource(used), device)
    x = torch.randn(9, HIDDEN, device=device)
    assert_near(module(x), reference(x), 1e-5)


def pair(
    name: str | Quantizer,
    dtype: torch.dtype,
    device: torch.device,
    *,
    experts: int = 5,
    top: int = 2,
    offers: tuple[KernelOffer, ...] = OFFERS,
    kernel: str = "moe:GroupedExperts",
    make: Any = make,
) -> tuple[MoE, MoE, Filler]:
    """The experts as Triton runs them and as plain torch does, with the same weights."""
    quantizer: Quantizer = QUANTIZERS[name]({}) if isinstance(name, str) else name
    w, plain = (place(dtype=dtype, quantizer=quantizer, device=device) for _ in range(2))
    module, reference = make(w, experts, top), make(plain, experts, top)
    fill_module(reference, plain, DummySource(plain.declaration.slots))
    (line,) = bind(module, offers, "xpu", lambda offer: load_object(offer.load))
    assert line.implementation == f"lsv_triton.gemm.{kernel}", line
    filler = Filler(module, w.declaration.slots)
    filler.fill(DummySource(w.declaration.slots), device)
    return module, reference, filler


def assert_near(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert (found.float() - wanted.float()).abs().max() <= tolerance * wanted.float().abs().max()


@pytest.mark.parametrize("name", QUANTIZERS)
def test_experts(name: str, device: torch.device) -> None:
    module, reference, _ = pair(name, torch.float32, device)
    for tokens in (1, 19):
        x = torch.randn(tokens, HIDDEN).to(device)
        assert_near(module(x), reference(x), TOLERANCE.get(name, 2e-6))


@pytest.mark.parametrize("activation", EXPERTS_OF)
def test_experts_of_every_activation(activation: str, device: torch.device) -> None:
    module, reference, _ = pair("plain", torch.float32, device, make=EXPERTS_OF[activation])
    x = 3 * torch.randn(5, HIDDEN).to(device)
    assert_near(module(x), reference(x), 3e-6)


def test_experts_of_an_unknown_activation_are_left_to_torch(device: torch.device) -> None:
    module = make(place(device=device), 3, 2)
    for expert in module.experts:
        expert.act.name = "swish of tomorrow"  # type: ignore[union-attr]
    (line,) = [line for line in bind(module, OFFERS, "xpu", lambda offer: load_object(offer.load)) if line.op == "moe"]
    assert line.implementation == "reference"
    assert "the activation is not one of" in line.why


def test_experts_that_round_what_they_are_given(device: torch.device) -> None:
    """An e4m3 has four significant bits: two roundings of a sum's terms stay within a sixteenth of the largest."""
    every = tuple(plugin.lsv_kernels())
    module, reference, _ = pair("fp8", torch.float32, device, offers=every, kernel="fp8:Fp8Experts")
    for tokens in (1, 19):
        x = torch.randn(tokens, HIDDEN).to(device)
        wanted = reference(x)
        assert 1e-4 < (module(x) - wanted).abs().max() / wanted.abs().max() < 1 / 16


def test_adapters_of_experts(device: torch.device) -> None:
    """Two of them, for all layers and for some, beside tokens without."""
    active, found = ActiveAdapters(), []
    active.tokens = send_adapters(np.array([1, 0, 2, 2, 1, 0, *[1] * 13]), device)
    module, reference, _ = pair("nf4", torch.float32, device)
    x = torch.randn(19, HIDDEN).to(device)
    plain = reference(x)
    for one in (module, reference):
        generator = torch.Generator().manual_seed(0)
        for number, slots in enumerate(attach_to(one, 2, torch.float32, active)):
            for slot in range(1 + number % 2):
                shapes = (len(slots.sources), 3, slots.layer.inputs), (3, slots.layer.width)
                a, b = (0.1 * torch.randn(shape, generator=generator) for shape in shapes)
                slots.fill(slot, Share(a, b), device)
        found.append(one(x))
    assert_near(*found, 1e-5)
    changed = [row for row in range(len(x)) if not torch.equal(found[1][row], plain[row])]
    assert changed == [row for row in range(len(x)) if row not in (1, 5)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype: torch.dtype, device: torch.device) -> None:
    """All experts are asked: which of two about as likely ones a router chooses hangs on the last bit."""
    module, reference, _ = pair("asym_int4", dtype, device, experts=3, top=3)
    x = torch.randn(7, HIDDEN).to(device, dtype)
    assert_near(module(x), reference(x), 2**-5 if dtype == torch.bfloat16 else 2**-7)


@pytest.mark.parametrize("name", ["plain", "sym_int4"])
def test_a_token_does_not_depend_on_the_others(name: str, device: torch.device) -> None:
    module, _, _ = pair(name, torch.float32, device)
    check_rows(module, (torch.randn(4, HIDDEN).to(device),))


@pytest.mark.parametrize(("gate_up", "down"), [("plain", "sym_int4"), ("int8", "nf4")])
def test_large_tiles_of_two_formats(gate_up: str, down: str, device: torch.device) -> None:
    module, reference, _ = pair(Uneven({"down_proj": down, "proj": gate_up}), torch.float32, device, experts=2, top=2)
    x = torch.randn(70, HIDDEN).to(device)
    assert_near(module(x), reference(x), TOLERANCE.get(down, 2e-6))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize(("experts", "top"), [(5, 1), (12, 4), (3, 3)])
def test_many_tokens(name: str, experts: int, top: int, device: torch.device) -> None:
    module, reference, _ = pair(name, torch.float32, device, experts=experts, top=top)
    for tokens in (1, 15, 40):
        x = torch.randn(tokens, HIDDEN).to(device)
        assert_near(module(x), reference(x), TOLERANCE.get(name, 3e-6))
    check_rows(module, (torch.randn(5, HIDDEN).to(device),))


@pytest.mark.parametrize(("tokens", "experts", "top"), [(1, 8, 2), (40, 4, 3), (9, 64, 1), (50, 2, 2)])
def test_every_row_is_in_one_tile_of_its_expert(tokens: int, experts: int, top: int, device: torch.device) -> None:
    chances = torch.rand(tokens, experts) * torch.arange(experts)  # the first expert has no row, the last one many
    chosen = chances.topk(top, dim=-1).indices.sort(dim=-1).values
    route = route_rows(chosen.to(device), experts, "product")
    pairs, seen = route.pairs.cpu(), []
    for expert, first, end in route.tiles.tolist():
        assert end - first <= route.rows
        rows = pairs[first:end]
        assert (chosen.flatten()[rows] == expert).all()
        seen += rows.tolist()
    assert sorted(seen) == list(range(tokens * top))


@pytest.mark.parametrize(
    ("tokens", "experts", "top", "tiles"), [(1, 128, 8, 8), (4, 128, 8, 32), (64, 8, 2, 8 + 120 // 16)]
)
def test_tiles_without_work(tokens: int, experts: int, top: int, tiles: int, device: torch.device) -> None:
    """There are no more than so many pairs can need, wherever routers send them; those with work come first."""
    for chances in (torch.rand(tokens, experts), -torch.arange(experts).expand(tokens, -1).float()):
        chosen = chances.topk(top, dim=-1).indices.sort(dim=-1).values
        route = route_rows(chosen.to(device), experts, "product")
        assert len(route.tiles) == tiles
        counts = chosen.flatten().bincount(minlength=experts)
        needed = int((-(-counts // route.rows)).sum())
        busy = [end > first for _, first, end in route.tiles.tolist()]
        assert busy == [True] * needed + [False] * (tiles - needed)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("count", "top"), [(5, 2), (128, 8), (3, 3)])
def test_choosing_experts(count: int, top: int, normalise: bool, device: torch.device) -> None:
    logits = torch.randn(9, count)
    logits[3, : top + 1] = 9.0  # of equals the lower numbers are taken
    weights, experts = choose_experts(logits.to(device), top, normalise=normalise)
    shares, wanted = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True, stable=True)
    wanted, places = wanted[:, :top].sort(dim=-1)
    shares = shares[:, :top].gather(1, places)
    shares = shares / shares.sum(dim=-1, keepdim=True) if normalise else shares
    assert torch.equal(experts.cpu().long(), wanted)
    torch.testing.assert_close(weights.cpu(), shares, rtol=1e-6, atol=1e-7)


def test_a_row_that_is_not_finite_has_experts_and_poisons_only_itself(device: torch.device) -> None:
    logits = torch.randn(3, 6)
    logits[1, 2] = torch.nan
    weights, experts = choose_experts(logits.to(device), 2, normalise=True)
    assert ((experts >= 0) & (experts < 6)).all()
    assert weights.isfinite().all(dim=-1).tolist() == [True, False, True]


@pytest.mark.parametrize(("name", "rounding"), [("plain", 0), ("asym_int4", 0), ("int8", 2)])
def test_launches_of_a_layer(name: str, rounding: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Router, choice, order, three products' worth of experts, sum; and no operation of torch beside them."""
    module, _, _ = pair(name, torch.float32, torch.device("cpu"), experts=6, top=2)
    x, names = torch.randn(2, HIDDEN), []
    launch = GridExecutor.__call__

    def counted(grid: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(grid.fn.__name__)
        with torch.utils._python_dispatch._disable_current_modes():
            return launch(grid, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", counted)
    work = Work(names)
    with torch.inference_mode(), work:
        module(x)
    rounded = ["_round_rows"] * (rounding > 0)
    product = "multiply" if name != "int8" else "multiply_integers"
    assert [one for one in names if one != "add_parts"] == [
        "multiply", "_choose_experts", "_sort_rows", *rounded, product, "_gated", *rounded, product, "_add_experts",
    ]  # fmt: skip


class Work(TorchDispatchMode):
    """Adds the names of torch's operations that are more than views or memory."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and not func._schema.name.startswith("aten::empty"):
            self._names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_at_most_one_expert_is_held_twice(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    take = Stack.take

    def counted(stack: Stack, number: int) -> None:
        layers = [layer for layer in stack._layers if not next(iter(layer.parameters())).is_meta]
        held.append(len(layers))
        take(stack, number)

    monkeypatch.setattr(Stack, "take", counted)
    module, _, filler = pair("plain", torch.float32, device)
    x = torch.randn(3, HIDDEN).to(device)
    before, places = module(x), [tensor.data_ptr() for tensor in module.buffers()]
    assert max(held) == 1
    filler.fill(DummySource(filler.slots), device)
    assert torch.equal(module(x), before)
    assert [tensor.data_ptr() for tensor in module.buffers()] == places
    left = [parameter for parameter in module.experts.parameters() if not parameter.is_meta]
    assert not left, "experts keep weights of their own"


def test_experts_of_different_formats_are_refused() -> None:
    module = make(place(quantizer=Uneven({".3.": "int8", "": "plain"})) / "mlp", 5, 2)
    with pytest.raises(CheckpointError, match=r"experts\.3.* are quantised differently"):
        bind(module, tuple(plugin.lsv_kernels()), "cuda", lambda offer: load_object(offer.load))


@pytest.mark.slow
def test_nothing_waits_for_the_device() -> None:
    """Not even the router: a step with experts can be captured."""
    module, _, _ = pair("plain", torch.float32, torch.device("cpu"))
    x = torch.randn(3, HIDDEN)
    wanted, recording = module(x.flip(0)), Recording(outside=[(GridExecutor, "__call__")])
    with torch.inference_mode():
        with recording.capture():
            found = module(x)
        x.copy_(x.flip(0))
        recording.replay()
    assert torch.equal(found, wanted)
