"""Every kernel that is offered, against the reference of the module it stands in for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lsv.offers import KernelOffer, OpSpec
from lsv_cpu import plugin
from lsv_cpu.kernels import RmsNorm
from lsv_runtime.devices.device import Device
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedActivation, GatedMLP
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope, RopeConfig
from lsv_testing.ops import check_kernel

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
@pytest.mark.parametrize("inputs", [96, 45])
@DTYPES
def test_linear(dtype: torch.dtype, inputs: int, bias: bool, device: Device) -> None:
    given = [(torch.randn(rows, inputs).to(dtype),) for rows in (1, 16, 33, 256)]
    given += [(torch.randn(2, 3, inputs).to(dtype),), (torch.randn(7, 2 * inputs).to(dtype)[:, :inputs],)]
    check_kernel(
        offer("linear"),
        lambda w: Column.even(w, ("q", "k"), inputs, 75, bias=bias).linear,
        given[:-2] if inputs == 45 else given,
        dtype=dtype,
        tolerance=TOLERANCE[dtype],
    )


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh", "relu"])
@DTYPES
def test_gated_mlp(dtype: torch.dtype, activation: str, device: Device) -> None:
    check_kernel(
        offer("gated_mlp"),
        lambda w: GatedMLP(w, 70, 88, activation, bias=True),
        [(torch.randn(rows, 70).to(dtype),) for rows in (1, 5, 40)],
        dtype=dtype,
        tolerance=2 * TOLERANCE[dtype],  # the reference rounds gate and up, the kernel does not
    )


def test_linears_say_what_they_do_not_pack() -> None:
    assert "awq" in (offer("linear").supports(OpSpec("linear", "float32", format="awq")) or "")
    assert "float64" in (offer("linear").supports(OpSpec("linear", "float64")) or "")
    assert "no gate" in (offer("gated_mlp").supports(OpSpec("gated_mlp", "float32", flags=frozenset({"mish"}))) or "")
