"""RMS norm, alone and fused with the residual sum, against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from lsv.offers import KernelOffer
from lsv_runtime.nn.norm import RMSNorm
from lsv_testing.ops import check_kernel
from lsv_triton import plugin

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def offer(op: str) -> KernelOffer:
    (found,) = (offer for offer in plugin.lsv_kernels() if (offer.op, offer.platform) == (op, "cuda"))
    return found


@pytest.mark.parametrize("size", [64, 50])
@DTYPES
def test_rows_and_slices_of_a_fused_projection(dtype: torch.dtype, size: int, device: torch.device) -> None:
    fused = torch.randn(5, 8, size, dtype=dtype, device=device)
    inputs = [(torch.randn(rows, size, dtype=dtype, device=device),) for rows in (1, 7)]
    inputs += [(fused,), (fused[:, :3],), (fused[:, 3:],)]
    check_kernel(
        offer("rms_norm"),
        lambda w: RMSNorm(w, size, 1e-5),
        inputs,
        dtype=dtype,
        tolerance=TOLERANCE[dtype],
        device=device,
    )


def test_other_layouts(device: torch.device) -> None:
    """Neither rows that are apart in the last axis nor four axes are laid out as the kernel reads them."""
    from lsv_triton.layers.norm import rms_norm

    weight = torch.rand(6, device=device)
    for x in (torch.randn(4, 12)[:, ::2], torch.randn(2, 3, 4, 6), torch.randn(6), torch.randn(3, 6, 2).mT):
        x = x.to(device)
        torch.testing.assert_close(rms_norm(x, weight, 1e-6), functional.rms_norm(x, (6,), weight, 1e-6))


@DTYPES
def test_the_sum_is_written_and_normed(dtype: torch.dtype, device: torch.device) -> None:
    from lsv_triton.layers.norm import add_rms_norm

    x, residual = torch.randn(2, 5, 200, device=device).to(dtype)
    weight = torch.rand(200, device=device).to(dtype)
    total, normed = add_rms_norm(x, residual, weight, 1e-5)
    exact = x + residual  # Triton's interpreter cuts bfloat16 off where GPUs round
    torch.testing.assert_close(total, exact, rtol=2**-7 if dtype == torch.bfloat16 else 0.0, atol=0.0)
    exact = functional.rms_norm(total, (200,), weight, 1e-5)
    assert (normed - exact).abs().max() <= TOLERANCE[dtype] * exact.abs().max()
    for row in range(5):
        alone = add_rms_norm(x[row : row + 1], residual[row : row + 1], weight, 1e-5)
        assert torch.equal(alone[0][0], total[row])
        assert torch.equal(alone[1][0], normed[row])


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 896, 5120])
@DTYPES
def test_sizes_of_models(dtype: torch.dtype, size: int, device: torch.device) -> None:
    inputs = [(torch.randn(rows, size, dtype=dtype, device=device),) for rows in (1, 3, 33)]
    check_kernel(
        offer("rms_norm"),
        lambda w: RMSNorm(w, size, 1e-6),
        inputs,
        dtype=dtype,
        tolerance=TOLERANCE[dtype],
        device=device,
    )
