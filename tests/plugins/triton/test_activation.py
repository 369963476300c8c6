"""Gated activations against the module's plain torch."""

from __future__ import annotations

import pytest
import torch

from lsv.nn.mlp import GatedActivation
from lsv.offers import KernelOffer
from lsv.testing.ops import check_kernel
from lsv_triton import plugin

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of a gate far below 0


def offer(op: str) -> KernelOffer:
    (found,) = (offer for offer in plugin.lsv_kernels() if (offer.op, offer.platform) == (op, "cuda"))
    return found


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])
def test_gate_times_up(activation: str, dtype: torch.dtype, device: torch.device) -> None:
    x = 3 * torch.randn(3, 2 * 70, dtype=dtype, device=device)
    x[0, :4] = torch.tensor([0.0, -60.0, 60.0, -200.0])
    wide = torch.randn(3, 200, dtype=dtype, device=device)[:, :140]
    check_kernel(
        offer(f"{activation}_mul"),
        lambda w: GatedActivation(activation, dtype),
        [(x,), (x[:1],), (wide,), (torch.randn(2, 3, 22, dtype=dtype, device=device),)],
        dtype=dtype,
        tolerance=TOLERANCE[dtype],
        device=device,
    )


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
