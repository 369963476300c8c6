"""The rotation of heads, and with it the norm of q and k, against the modules' plain torch."""

from __future__ import annotations

import pytest
import torch

from lsv.offers import KernelOffer
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope, RopeConfig
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.weights.place import Weights
from lsv_testing.ops import check_kernel
from lsv_testing.tensors import fill_module, place
from lsv_triton import plugin

TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
SHAPES = pytest.mark.parametrize(("dim", "rotary"), [(64, 64), (80, 20), (128, 96)])


def offer(op: str) -> KernelOffer:
    (found,) = (offer for offer in plugin.lsv_kernels() if (offer.op, offer.platform) == (op, "cuda"))
    return found


def rope(w: Weights, dim: int, rotary: int) -> Rope:
    config = RopeConfig(
        kind="default", theta=1e4, head_dim=dim, rotary_dim=rotary, length=500, original_length=500, parameters={}
    )
    return Rope(w, config, 500)


@SHAPES
@DTYPES
def test_heads_turn(dtype: torch.dtype, dim: int, rotary: int, device: torch.device) -> None:
    fused = torch.randn(5, 7, dim, dtype=dtype, device=device)
    positions = torch.randint(0, 500, (5,), device=device)
    inputs = [(fused, positions), (fused[:, 2:5], positions), (fused[:1], torch.tensor([499], device=device))]
    check_kernel(
        offer("rope"),
        lambda w: rope(w, dim, rotary),
        inputs,
        dtype=dtype,
        tolerance=TOLERANCE[dtype],
        device=device,
    )


@SHAPES
@DTYPES
def test_heads_are_normed_and_turn(dtype: torch.dtype, dim: int, rotary: int, device: torch.device) -> None:
    from lsv_triton.layers.rope import turn_heads

    w = place(dtype=dtype, device=device)
    parts = torch.nn.ModuleList([RMSNorm(w / "q", dim, 1e-6), RMSNorm(w / "k", dim, 1e-5), rope(w, dim, rotary)])
    q_norm, k_norm, turn = fill_module(parts, w, DummySource(w.declaration.slots))
    qkv = 3 * torch.randn(5, 8, dim, dtype=dtype, device=device)
    positions = torch.randint(0, 500, (5,), device=device)
    found = turn_heads(qkv[:, :6], positions, turn, (q_norm, k_norm, 4))
    exact = turn(torch.cat((q_norm(qkv[:, :4]), k_norm(qkv[:, 4:6])), dim=1), positions)
    assert (found - exact).abs().max() <= TOLERANCE[dtype] * exact.abs().max()
    for token in range(5):
        one = slice(token, token + 1)
        assert torch.equal(turn_heads(qkv[one, :6], positions[one], turn, (q_norm, k_norm, 4))[0], found[token])
