"""The kernels that are offered, over the fakes of Intel's calls, against the references of their modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from lsv.offers import KernelOffer, OpSpec
from lsv_hpu import plugin, selection
from lsv_hpu.devices import Gaudi
from lsv_hpu.emulation.ops import answering, fake_ops
from lsv_hpu.formats.fp8 import DynamicFp8, StaticFp8, quantise_rows, why_not_fp8
from lsv_hpu.formats.int4 import EvenInt4, why_not_int4
from lsv_hpu.kernels import EveryExpert, MixedExperts
from lsv_hpu.vendor_ops import VendorOps
from lsv_runtime.emulation.recording import Recording
from lsv_runtime.emulation.vendors.onednn import check_rows_apart
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.weights.codebook import Codebook, CodedLinear, to_nibbles
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.quantizer import LinearLayer
from lsv_runtime.weights.static_coded import StaticCodedLinear
from lsv_testing.ops import SpreadRanks, check_kernel
from lsv_testing.tensors import TensorsSource, fill_module, place

E4M3 = Codebook(tuple(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist()))
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-6}


@pytest.fixture(params=["gaudi2", "gaudi3"], autouse=True)
def gaudi(request: pytest.FixtureRequest) -> Iterator[Gaudi]:
    selected = selection.Selection(fake_ops(request.param))
    selection.select(selected)
    yield request.param
    selection.deselect(selected)


def offer(op: str, name: str) -> KernelOffer:
    (found,) = (one for one in plugin.lsv_kernels() if one.op == op and one.load.endswith(f":{name}"))
    return found


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_rms_norm(dtype: torch.dtype) -> None:
    fused = torch.randn(5, 8, 48, dtype=dtype)
    inputs = [(torch.randn(rows, 48, dtype=dtype),) for rows in (1, 7)] + [(fused,), (fused[:, 3:],)]
    made = offer("rms_norm", "RmsNorm")
    check_kernel(made, lambda w: RMSNorm(w, 48, 1e-5), inputs, dtype=dtype, tolerance=TOLERANCE[dtype])


def experts(w: Weights) -> MoE:
    return MoE(w, 32, 24, "silu", experts=5, top=2, normalise=True)


@pytest.mark.parametrize("name", ["MixedExperts", "EveryExpert"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_experts(dtype: torch.dtype, name: str) -> None:
    inputs = [(torch.randn(rows, 32, dtype=dtype),) for rows in (1, 9)]
    check_kernel(offer("moe", name), experts, inputs, dtype=dtype, tolerance=4 * TOLERANCE[dtype])


def spread_experts(name: str, owners: Sequence[int], dtype: torch.dtype = torch.float32, top: int = 2) -> SpreadRanks:
    def make(w: Weights) -> MoE:
        return MoE(w, 32, 24, "silu", experts=len(owners), top=top, normalise=True)

    return SpreadRanks(make, owners, [offer("moe.spread", name)], dtype=dtype)


@pytest.mark.row("F-282", "F-570")
@pytest.mark.parametrize("name", ["MixedExperts", "EveryExpert"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_spread_experts_add_up_to_all(dtype: torch.dtype, name: str) -> None:
    """All experts are asked: which of two about as likely ones a router chooses hangs on the last bit."""
    ranks, x = spread_experts(name, (1, 0, 1), dtype, top=3), torch.randn(9, 32, dtype=dtype)
    with torch.inference_mode():
        wanted = ranks.reference(x).float()
        assert (ranks(x).float() - wanted).abs().max() <= 4 * TOLERANCE[dtype] * wanted.abs().max()


@pytest.mark.row("F-282")
@pytest.mark.parametrize("name", ["MixedExperts", "EveryExpert"])
def test_a_captured_step_follows_experts_that_move(name: str) -> None:
    """And counts what each replay computes."""
    ranks, x, recording = spread_experts(name, (1, 0, 0, 1, 0, 1)), torch.randn(8, 32), Recording()
    spreads = ranks.spreads
    for spread in spreads:
        spread.start_counting()
    with torch.inference_mode():
        with recording.capture():
            out = ranks(x)
        for one, other in ((0, 1), (3, 2), (1, 4)):
            ranks.exchange(one, other)
            for spread in spreads:
                spread.start_counting()
            x.copy_(torch.randn(8, 32))
            recording.replay()
            torch.testing.assert_close(out, ranks.reference(x), rtol=1e-4, atol=1e-6)
            chosen = ranks.reference.router(x)[1].flatten().bincount(minlength=6)
            assert all(torch.equal(spread.counts, chosen) for spread in spreads)


@pytest.mark.row("F-570")
@pytest.mark.parametrize("name", ["MixedExperts", "EveryExpert"])
def test_tokens_that_fill_a_step_up_are_nobodys(name: str) -> None:
    with torch.inference_mode():
        spread_experts(name, (1, 0, 0, 1, 0, 1)).check_nobody(torch.randn(7, 32))


def test_op_by_op_every_place_is_one_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The software scatters the weights of a token's pairs into a row as long as the list of experts: places beyond it
    are none, and of two pairs with one place the last one counts.
    """
    mix = VendorOps.mix_experts

    def strict(ops: VendorOps, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, *rest: Any) -> Any:
        down = rest[1]
        assert ((experts >= 0) & (experts < len(down))).all()
        scattered = torch.zeros(len(x), len(down), dtype=weights.dtype).scatter_(1, experts, weights)
        torch.testing.assert_close(scattered.sum(1), weights.sum(1))
        return mix(ops, x, experts, weights, *rest)

    monkeypatch.setattr(VendorOps, "mix_experts", strict)
    ranks, x = spread_experts("MixedExperts", (1, 0, 0, 0, 0, 0), top=4), torch.randn(9, 32)
    with torch.inference_mode():
        torch.testing.assert_close(ranks(x), ranks.reference(x), rtol=1e-4, atol=1e-6)


def test_compiled_calls_are_asked_for_their_own_places(gaudi: Gaudi) -> None:
    """Pairs of other ranks are behind the last of all calls."""
    answered, ranks, x = answering(gaudi), spread_experts("MixedExperts", (0,) * 70 + (1,) * 3), torch.randn(9, 32)
    with torch.inference_mode():
        compiled = torch.compile(ranks.modules[0].forward, backend="eager", fullgraph=True)
        answered.log.clear()
        found = compiled(x)
        calls = [arguments[1:] for name, arguments in answered.log if name == "mixture_of_experts"]
        assert calls[-2:] == [(0, 63), (64, 69)]
        torch.testing.assert_close(found + ranks.modules[1](x), ranks.reference(x), rtol=1e-4, atol=1e-6)
    torch._dynamo.reset()


def test_a_compiled_call_takes_some_of_many_experts(gaudi: Gaudi) -> None:
    """Op by op the software does not look at where a slice begins, so a call has all experts there."""
    answered = answering(gaudi)

    def many(w: Weights) -> MoE:
        return MoE(w, 8, 4, "silu", experts=150, top=3, normalise=True)

    def spans() -> list[tuple[int, int]]:
        calls = [arguments[1:] for name, arguments in answered.log if name == "mixture_of_experts"]
        answered.log.clear()
        return calls

    module = many(place()).to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(40, 8)
    kernel = MixedExperts(module, module.spec())
    with torch.inference_mode():
        wanted = module.reference(x)
        spans()
        torch.testing.assert_close(kernel.forward(x), wanted, rtol=1e-4, atol=1e-4)
        assert spans() == [(0, 149)]
        compiled = torch.compile(kernel.forward, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), wanted, rtol=1e-4, atol=1e-4)
    assert spans()[-3:] == [(0, 63), (64, 127), (128, 149)]
    torch._dynamo.reset()


def test_experts_can_be_captured() -> None:
    """Their reference can not: how many tokens an expert gets is known to nobody before."""
    w = place()
    module = experts(w)
    for parameter in module.parameters():
        assert parameter.is_meta
    module = module.to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    x, recording = torch.randn(6, 32), Recording()
    with torch.inference_mode(), recording.capture():
        out = EveryExpert(module, module.spec()).forward(x)
    x.copy_(torch.randn(6, 32))
    recording.replay()
    with torch.inference_mode():
        torch.testing.assert_close(out, module.reference(x), rtol=1e-4, atol=1e-3)


class Rounded(CodedLinear):
    """A plain weight in e4m3, as a checkpoint in fp8 has it."""

    def __init__(self, w: Weights, inputs: int, outputs: int, *, bias: bool, dtype: torch.dtype) -> None:
        layer = LinearLayer("a", "column", inputs, (outputs,), bias, dtype)
        super().__init__(layer, E4M3, w.take("bias", (outputs,)) if bias else None)
        self.plain = w.take("weight", (outputs, inputs))

    def filled(self) -> None:
        plain = self.release("plain").float()
        scales = plain.abs().amax(1, keepdim=True) / 448
        self.hold((plain / scales).to(torch.float8_e4m3fn).view(torch.uint8), scales)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_fp8(dtype: torch.dtype, bias: bool) -> None:
    """Activations in e4m3 are off by 1/16 of themselves at most, and sums of many by much less."""
    inputs = [(torch.randn(rows, 256, dtype=dtype) * 10.0 ** (rows - 2),) for rows in (1, 4)]
    inputs.append((torch.randn(2, 3, 256, dtype=dtype),))
    check_kernel(
        offer("linear.coded", "DynamicFp8"),
        lambda w: Rounded(w, 256, 40, bias=bias, dtype=dtype),
        inputs,
        dtype=dtype,
        tolerance=0.05,
    )


def test_fp8_weights_fit_the_device(gaudi: Gaudi) -> None:
    module = Rounded(place(), 64, 8, bias=False, dtype=torch.float32)
    module.plain = torch.nn.Parameter(torch.randn(8, 64), requires_grad=False)
    module.filled()
    wanted = module.weight()
    DynamicFp8(module, module.spec()).pack()
    weight = module.get_buffer("fp8_weight").float()
    assert weight.abs().max() == (224 if gaudi == "gaudi2" else 448)
    found = weight * module.get_buffer("fp8_scales")[:, None]
    smallest = 2.0**-9 * module.get_buffer("fp8_scales").max().item()
    torch.testing.assert_close(found, wanted, rtol=0, atol=smallest)


def test_fp8_activations_of_a_token_that_is_zero_or_large(gaudi: Gaudi) -> None:
    coded, scales = quantise_rows(torch.tensor([[0.0, 0.0], [3e4, -1.5e4]]), selection.ops())
    largest = 240 if gaudi == "gaudi2" else 448
    assert coded.float().tolist() == [[0.0, 0.0], [largest, -largest / 2]]
    assert (coded.float() * scales).tolist()[1] == pytest.approx([3e4, -1.5e4])


class StaticRounded(StaticCodedLinear, Rounded):
    """The same of a checkpoint whose activations have a stored scale."""

    scale = 0.02

    def filled(self) -> None:
        super().filled()
        self.keep("input_scale", torch.tensor([self.scale]))


@pytest.mark.row("F-404")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_static_fp8(dtype: torch.dtype, bias: bool, gaudi: Gaudi) -> None:
    """Activations beyond the range of the scale are cut as the reference cuts them. Gaudi 2 has half the small numbers:
    weights and rows below them are off by half a step of 2**-8 of their scale.
    """
    inputs = [(torch.randn(rows, 256, dtype=dtype) * 10.0 ** (rows - 2),) for rows in (1, 3)]
    inputs.append((torch.randn(2, 3, 256, dtype=dtype),))
    narrow = gaudi == "gaudi2"
    check_kernel(
        offer("linear.coded_static", "StaticFp8"),
        lambda w: StaticRounded(w, 256, 40, bias=bias, dtype=dtype),
        inputs,
        dtype=dtype,
        tolerance=0.01 if dtype == torch.bfloat16 or narrow else 1e-5,
    )


def test_static_fp8_of_an_identity_is_the_weights(gaudi: Gaudi) -> None:
    """Ones may be far beyond the range of the scale."""
    module = StaticRounded(place(), 64, 8, bias=False, dtype=torch.float32)
    module.plain = torch.nn.Parameter(torch.randn(8, 64), requires_grad=False)
    module.scale = 1e-4
    module.filled()
    wanted, smallest = module.weight().T, 2.0**-9 * float(module.scales.max())
    module.use(StaticFp8(module, module.spec()))
    module.pack()
    torch.testing.assert_close(module.unrounded(torch.eye(64)), wanted, rtol=1e-5, atol=smallest)


def test_fp8_activations_within_a_bound(gaudi: Gaudi) -> None:
    coded, scales = quantise_rows(torch.tensor([[5.0, -1.0], [0.5, 0.25]]), selection.ops(), 2.0)
    assert (coded.float() * scales).flatten().tolist() == pytest.approx([2.0, -1.0, 0.5, 0.25])


class FourBits(CodedLinear):
    """A plain weight in 16 even steps a group; ``table`` begins at -8, or at 0 with an offset for each group."""

    def __init__(self, w: Weights, inputs: int, *, group: int, offsets: bool, bias: bool, dtype: torch.dtype) -> None:
        layer = LinearLayer("a", "column", inputs, (24,), bias, dtype)
        first = 0 if offsets else -8
        codebook = Codebook(tuple(float(first + code) for code in range(16)), group, offsets=offsets)
        super().__init__(layer, codebook, w.take("bias", (24,)) if bias else None)
        self.plain = w.take("weight", (24, inputs))

    def filled(self) -> None:
        plain = self.release("plain").float().unflatten(1, (self.codebook.groups(self.layer.inputs), -1))
        low, high = plain.amin(-1), plain.amax(-1)
        scales = (high - low) / 15 if self.codebook.offsets else plain.abs().amax(-1) / 8
        base = low[..., None] if self.codebook.offsets else -8 * scales[..., None]
        codes = ((plain - base) / scales[..., None]).round().clamp(0, 15).to(torch.uint8)
        self.hold(to_nibbles(codes.flatten(1)), scales, low if self.codebook.offsets else None)


@pytest.mark.row("F-438")
@pytest.mark.parametrize(("group", "offsets"), [(32, True), (32, False), (0, True)])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_int4(dtype: torch.dtype, group: int, offsets: bool) -> None:
    inputs = [(torch.randn(rows, 128, dtype=dtype) + 0.5,) for rows in (1, 4)] + [
        (torch.randn(2, 3, 128, dtype=dtype),)
    ]
    check_kernel(
        offer("linear.coded", "EvenInt4"),
        lambda w: FourBits(w, 128, group=group, offsets=offsets, bias=True, dtype=dtype),
        inputs,
        dtype=dtype,
        tolerance=2 * TOLERANCE[dtype],
    )


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_rows_of_int4_are_looked_up_as_they_were(dtype: torch.dtype, offsets: bool) -> None:
    w = place(dtype=dtype)
    module = FourBits(w, 128, group=32, offsets=offsets, bias=False, dtype=dtype)
    module.looked_up = True
    fill_module(module, w, TensorsSource({"weight": torch.randn(24, 128, dtype=dtype)}))
    ids = torch.tensor([23, 0, 9, 9])
    wanted = module.look_up(ids)
    kernel = EvenInt4(module, module.spec())
    module.use(kernel)
    kernel.pack()
    assert module.codes.is_meta
    assert torch.equal(module.look_up(ids), wanted)


@pytest.mark.onednn
def test_rows_of_three_groups_are_apart() -> None:
    w = place(dtype=torch.bfloat16)
    module = FourBits(w, 96, group=32, offsets=True, bias=False, dtype=torch.bfloat16)
    fill_module(module, w, TensorsSource({"weight": torch.randn(24, 96, dtype=torch.bfloat16)}))
    kernel = EvenInt4(module, module.spec())
    kernel.pack()
    check_rows_apart(kernel.forward, torch.randn(6, 96, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("changes", "flags", "why"),
    [
        ({}, {"table"}, "not 4 bits in even steps"),
        ({"bits": 8}, {"even"}, "not 4 bits in even steps"),
        ({}, {"even", "ordered"}, "order of their own"),
        ({"out": 12}, {"even"}, "12 outputs"),
        ({"in": 100}, {"even"}, "100 inputs"),
    ],
)
def test_codes_that_int4_does_not_serve(changes: dict[str, int], flags: set[str], why: str) -> None:
    shape = {"in": 128, "out": 24, "bits": 4, "group": 32, **changes}
    assert why in (why_not_int4(OpSpec("linear.coded", "bfloat16", "coded", shape, frozenset(flags))) or "")


@pytest.mark.parametrize(
    ("group", "flags", "why"),
    [(128, {"float8_e4m3fn"}, "not one scale"), (0, {"even"}, "not e4m3"), (0, {"float8_e4m3fn", "offsets"}, "scale")],
)
def test_codes_that_fp8_does_not_serve(group: int, flags: set[str], why: str) -> None:
    spec = OpSpec("linear.coded", "bfloat16", "coded", {"bits": 8, "group": group}, frozenset(flags))
    assert why in (why_not_fp8(spec) or "")
