"""The op table: who is asked first, who is bound, and what is said about it."""

import pytest
import torch

from lsv.offers import KernelOffer
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.moe import MoE, SharedMoE
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.ops import Bindable, Kernel, bind, find_uncapturable
from lsv_runtime.weights.place import Part
from lsv_testing.ops import check_kernel
from lsv_testing.tensors import place


def yes(spec):
    return None


def narrow_only(spec):
    return None if spec.shape["in"] <= 8 else "wider than 8"


class Plain(Kernel):
    """A kernel that does what the reference does."""

    def __init__(self, module, spec):
        self.forward = module.reference


class Doubled(Kernel):
    def __init__(self, module, spec):
        self.module = module

    def forward(self, *arguments):
        return 2 * self.module.reference(*arguments)


def load(offer):
    return {"plain": Plain, "doubled": Doubled}[offer.load]


def mlp():
    return GatedMLP(place(), 8, 12, "silu")


def test_no_offers_bind_nothing():
    module = mlp()
    lines = bind(module, [], "cpu", load)
    assert {(line.op, line.implementation, line.count, line.why) for line in lines} == {
        ("gated_mlp", "reference", 1, "no kernel offered"),
        ("linear", "reference", 2, "no kernel offered"),
        ("silu_mul", "reference", 1, "no kernel offered"),
    }
    assert all(child.kernel is None for child in module.modules() if isinstance(child, Bindable))


def test_outermost_modules_are_offered_first():
    module = mlp()
    lines = bind(
        module, [KernelOffer("linear", "cpu", "plain", yes), KernelOffer("gated_mlp", "cpu", "plain", yes)], "cpu", load
    )
    assert [(line.op, line.implementation, line.count) for line in lines] == [("gated_mlp", "plain", 1)]
    assert module.gate_up.linear.kernel is None


def test_modules_below_a_composite_kernel_are_offered_too():
    module = mlp()
    offers = [KernelOffer("linear", "cpu", "plain", yes), KernelOffer("gated_mlp", "cpu", "composite", yes)]
    composite = type("Composite", (Plain,), {"composite": True})
    lines = bind(module, offers, "cpu", lambda offer: composite if offer.load == "composite" else load(offer))
    assert [(line.op, line.implementation) for line in lines][:2] == [("gated_mlp", "composite"), ("linear", "plain")]
    assert isinstance(module.kernel, composite)
    assert isinstance(module.down.linear.kernel, Plain)


def test_references_that_no_device_can_capture_are_found():
    class Sparse(Plain):
        composite = True

    module = MoE(place(), 8, 12, "silu", experts=2, top=1, normalise=True)
    model = torch.nn.ModuleList([mlp(), module])
    assert find_uncapturable(model) == {"moe"}
    module.use(Sparse(module, module.spec()))
    assert find_uncapturable(model) == frozenset()


def test_a_shared_expert_is_captured_with_the_routed_ones():
    """The reference for such a kernel: products, a gate and a sum."""

    class Sparse(Plain):
        composite = True

    routed = MoE(place(), 8, 12, "silu", experts=2, top=1, normalise=True)
    model = torch.nn.ModuleList([SharedMoE(routed, mlp(), place())])
    assert find_uncapturable(model) == {"moe"}
    routed.use(Sparse(routed, routed.spec()))
    assert find_uncapturable(model) == frozenset()


def test_the_highest_rank_that_supports_a_module_is_bound():
    module = mlp()
    offers = [
        KernelOffer("linear", "cpu", "plain", yes, row_invariant=True),
        KernelOffer("linear", "cpu", "doubled", narrow_only, rank=1),
        KernelOffer("linear", "xpu", "doubled", yes, rank=2),
    ]
    lines = {
        (line.implementation, line.count, line.why, line.row_invariant) for line in bind(module, offers, "cpu", load)
    }
    assert ("doubled", 1, "offered", False) in lines
    assert ("plain", 1, "doubled: wider than 8", True) in lines
    assert isinstance(module.gate_up.linear.kernel, Doubled)
    assert isinstance(module.down.linear.kernel, Plain)


def test_offers_for_any_platform_count():
    lines = bind(mlp(), [KernelOffer("linear", "*", "plain", yes)], "hpu", load)
    assert ("linear", "plain") in {(line.op, line.implementation) for line in lines}


def test_refusals_are_told():
    lines = bind(mlp(), [KernelOffer("linear", "cpu", "plain", lambda spec: "too new")], "cpu", load)
    assert ("linear", "reference", "plain: too new") in {(line.op, line.implementation, line.why) for line in lines}


def test_a_bound_kernel_runs_in_the_modules_place():
    norm = RMSNorm(place(), 4, 1e-6)
    norm.weight = torch.nn.Parameter(torch.ones(4))
    x = torch.randn(2, 4)
    plain = norm(x)
    bind(norm, [KernelOffer("rms_norm", "cpu", "doubled", yes)], "cpu", load)
    assert torch.equal(norm(x), 2 * plain)


def test_specs_name_what_a_kernel_may_care_about():
    w = place(dtype=torch.bfloat16)
    spec = Column(w, [Part("q", 8, 0, 8), Part("k", 4, 0, 4)], 6, bias=True).linear.spec()
    assert (spec.op, spec.dtype, spec.format) == ("linear", "bfloat16", "plain")
    assert spec.shape == {"in": 6, "out": 12}
    assert spec.flags == {"column", "bias"}


class ByRows(Kernel):
    """A row-invariant linear: each token on its own."""

    def __init__(self, module, spec):
        self.module = module

    def forward(self, x):
        return torch.stack([(self.module.weight * row).sum(-1) for row in x])


def make_linear(w):
    return Column(w, [Part("q", 24, 0, 24)], 40).linear


def offer(name, row_invariant=False):
    """An offer of a kernel of this file."""
    return KernelOffer("linear", "cpu", f"{__name__}:{name}", yes, row_invariant=row_invariant)


INPUTS = [(torch.randn(rows, 40),) for rows in (1, 3, 8, 33)]


def test_the_kernel_suite_passes_a_right_kernel():
    check_kernel(offer("ByRows", row_invariant=True), make_linear, INPUTS, tolerance=1e-5)


def test_the_kernel_suite_fails_a_wrong_kernel():
    with pytest.raises(AssertionError, match="relative error"):
        check_kernel(offer("Doubled"), make_linear, INPUTS, tolerance=1e-5)


class CompanyMatters(ByRows):
    """Right but for the last bits, which depend on the number of tokens."""

    def forward(self, x):
        return super().forward(x) + 1e-5 * len(x)


def test_the_kernel_suite_fails_a_false_claim_of_row_invariance():
    with pytest.raises(AssertionError, match="alone"):
        check_kernel(offer("CompanyMatters", row_invariant=True), make_linear, INPUTS, tolerance=1e-3)
