"""Kernels over ``ipex.llm.functional``: its strict fake, and IPEX itself where it and its torch are there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lsv.offers import KernelOffer, OpSpec
from lsv_runtime.nn.mlp import GatedActivation
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope, RopeConfig
from lsv_runtime.ops import dtype_name
from lsv_testing.ops import check_kernel
from lsv_xpu import libraries, plugin
from lsv_xpu.emulation.ipex import FakeIpex

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-6, torch.float16: 2**-9}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=dtype_name)


@pytest.fixture(autouse=True, params=["fake", "real"])
def library(request: pytest.FixtureRequest) -> Iterator[None]:
    missing = libraries.missing_ipex()
    if request.param == "fake":
        libraries.use(libraries.IPEX, FakeIpex())
    elif missing is not None:
        pytest.skip(f"lacks {missing}")
    yield
    libraries.forget()


def offer(op: str) -> KernelOffer:
    (found,) = (one for one in plugin.lsv_kernels() if one.op == op and one.load.startswith("lsv_xpu.ipex.ops:"))
    return found


@DTYPES
def test_rms_norm(dtype: torch.dtype) -> None:
    fused = torch.randn(5, 8, 64).to(dtype)
    inputs = [(torch.randn(7, 64).to(dtype),), (fused[:, 3:],)]
    check_kernel(offer("rms_norm"), lambda w: RMSNorm(w, 64, 1e-5), inputs, dtype=dtype, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_new"])
@DTYPES
def test_gated_products(dtype: torch.dtype, name: str) -> None:
    inputs = [(3 * torch.randn(rows, 48).to(dtype),) for rows in (1, 5)]
    check_kernel(
        offer(f"{name}_mul"), lambda w: GatedActivation(name, dtype), inputs, dtype=dtype, tolerance=TOLERANCE[dtype]
    )


@DTYPES
def test_rope(dtype: torch.dtype) -> None:
    fused, positions = torch.randn(9, 12, 64).to(dtype), torch.randint(0, 500, (9,))
    inputs = [(fused, positions), (fused[:, 2:5], positions)]
    check_kernel(offer("rope"), lambda w: Rope(w, rope(64), 500), inputs, dtype=dtype, tolerance=TOLERANCE[dtype])


def test_half_turned_heads_are_refused() -> None:
    shape = {"head_dim": 80, "rotary_dim": 20, "positions": 500}
    assert "whole heads" in (offer("rope").supports(OpSpec("rope", "bfloat16", shape=shape)) or "")


def rope(dim: int) -> RopeConfig:
    return RopeConfig(
        kind="default", theta=1e4, head_dim=dim, rotary_dim=dim, length=500, original_length=500, parameters={}
    )
