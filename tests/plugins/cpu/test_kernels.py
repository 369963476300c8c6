"""Every kernel that is offered, against the reference of the module it stands in for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lsv.nn.linear import Column
from lsv.nn.mlp import GatedActivation
from lsv.nn.norm import RMSNorm
from lsv.nn.rope import Rope, RopeConfig
from lsv.offers import KernelOffer, OpSpec
from lsv.platform import Device
from lsv.testing.ops import check_kernel
from lsv_cpu import plugin
from lsv_cpu.kernels import RmsNorm, why_not_packed

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def offer(op: str) -> KernelOffer:
    (found,) = (offer for offer in plugin.lsv_kernels() if offer.op == op)
    return found


@pytest.mark.parametrize("size", [64, 896, 50])
@DTYPES
def test_rms_norm(dtype: torch.dtype, size: int, device: Device) -> None:
    fused = torch.randn(5, 8, size, dtype=dtype)
    inputs = [(torch.randn(rows, size, dtype=dtype),) for rows in (1, 7, 200)]
    inputs += [(fused,), (fused[:, :3],), (fused[:, 3:],)]
    check_kernel(offer("rms_norm"), lambda w: RMSNorm(w, size, 1e-5), inputs, dtype=dtype, tolerance=TOLERANCE[dtype])


def test_rms_norm_of_other_layouts(device: Device) -> None:
    """Neither rows that are apart in the last axis nor four axes are laid out as the kernel reads them."""
    module: Any = type("Norm", (), {"weight": torch.rand(6), "eps": 1e-6})
    kernel = RmsNorm(module, OpSpec("rms_norm", "float32"))
    for x in (torch.randn(4, 12)[:, ::2], torch.randn(2, 3, 4, 6), torch.randn(6), torch.randn(3, 6, 2).mT):
        wanted = torch.nn.functional.rms_norm(x, (6,), module.weight, 1e-6)
        torch.testing.assert_close(kernel.forward(x), wanted)


@pytest.mark.parametrize("size", [4864, 36])
@DTYPES
def test_silu_mul(dtype: torch.dtype, size: int, device: Device) -> None:
    inputs = [(3 * torch.randn(rows, 2 * size, dtype=dtype),) for rows in (1, 3, 40)]
    check_kernel(
        offer("silu_mul"), lambda w: GatedActivation("silu", dtype), inputs, dtype=dtype, tolerance=TOLERANCE[dtype]
    )


@pytest.mark.parametrize(("dim", "rotary"), [(64, 64), (80, 20), (128, 128)])
@DTYPES
def test_rope(dtype: torch.dtype, dim: int, rotary: int, device: Device) -> None:
    config = RopeConfig(
        kind="default", theta=1e4, head_dim=dim, rotary_dim=rotary, length=500, original_length=500, parameters={}
    )
    fused = torch.randn(9, 12, dim, dtype=dtype)
    positions = torch.randint(0, 500, (9,))
    inputs = [(fused, positions), (fused[:, 2:5], positions), (fused[:1], torch.tensor([499]))]
    check_kernel(offer("rope"), lambda w: Rope(w, config, 500), inputs, dtype=dtype, tolerance=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_linear(dtype: torch.dtype, bias: bool, device: Device) -> None:
    refusal = why_not_packed(OpSpec("linear", str(dtype).removeprefix("torch.")))
    if refusal is not None:
        pytest.skip(refusal)
    inputs = [(torch.randn(rows, 96, dtype=dtype),) for rows in (1, 16, 33, 256)] + [(torch.randn(2, 3, 96).to(dtype),)]
    check_kernel(
        offer("linear"),
        lambda w: Column.even(w, ("q", "k"), 96, 80, bias=bias).linear,
        inputs,
        dtype=dtype,
        tolerance=TOLERANCE[dtype],
    )


def test_packed_linear_says_what_it_does_not_pack() -> None:
    assert "int8" in (why_not_packed(OpSpec("linear", "float32", format="int8")) or "")
    assert "float64" in (why_not_packed(OpSpec("linear", "float64")) or "")
