"""Gated activations against the module's plain torch."""

from __future__ import annotations

import pytest
import torch

from lsv.offers import KernelOffer, load_object
from lsv_runtime.nn import mlp
from lsv_runtime.nn.mlp import ClampedGate, GatedActivation
from lsv_testing.ops import check_kernel
from lsv_triton import plugin
from lsv_triton.layers.activation import KINDS

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of a gate far below 0


def offer(op: str) -> KernelOffer:
    (found,) = (offer for offer in plugin.lsv_kernels() if (offer.op, offer.platform) == (op, "cuda"))
    return found


def gate(activation: str, dtype: torch.dtype) -> GatedActivation:
    if activation == "clamped_swiglu":
        return ClampedGate(dtype, alpha=1.702, limit=3.0)
    return GatedActivation(activation, dtype)


def test_every_activation_has_a_formula_and_an_offer() -> None:
    """A gate that the kernel does not know would be computed as another one."""
    names = {GatedActivation(name, torch.float32).name for name in mlp._ACTIVATIONS}
    assert KINDS.keys() == names | {"clamped_swiglu"}
    offered = {one.op for one in plugin.lsv_kernels() if one.load.endswith(":GatedProduct")}
    assert offered == {f"{name}_mul" for name in KINDS}


@pytest.mark.daily(dtype=[torch.bfloat16])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("activation", KINDS)
def test_gate_times_up(activation: str, dtype: torch.dtype, device: torch.device) -> None:
    x = 3 * torch.randn(3, 2 * 70, dtype=dtype, device=device)
    x[0, :4] = torch.tensor([0.0, -60.0, 60.0, -200.0])
    wide = torch.randn(3, 200, dtype=dtype, device=device)[:, :140]
    check_kernel(
        offer(f"{activation}_mul"),
        lambda w: gate(activation, dtype),
        [(x,), (x[:1],), (wide,), (torch.randn(2, 3, 22, dtype=dtype, device=device),)],
        dtype=dtype,
        tolerance=TOLERANCE[dtype],
        device=device,
    )


@pytest.mark.parametrize("activation", KINDS)
def test_no_activation_hides_a_nan(activation: str, device: torch.device) -> None:
    """A request whose numbers break is found by its NaN."""
    module = gate(activation, torch.float32)
    numbers = torch.tensor([torch.nan, -2.0, 5.0])
    x = torch.cartesian_prod(numbers, numbers).T.reshape(1, 18).to(device)
    kernel = load_object(offer(f"{activation}_mul").load)(module, module.spec())
    assert torch.equal(kernel.forward(x).isnan(), x[:, :9].isnan() | x[:, 9:].isnan())


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_rows_wider_than_a_block(activation: str, device: torch.device) -> None:
    check_kernel(
        offer(f"{activation}_mul"),
        lambda w: GatedActivation(activation, torch.float32),
        [(3 * torch.randn(4, 2 * 4864, device=device),)],
        tolerance=TOLERANCE[torch.float32],
        device=device,
    )
