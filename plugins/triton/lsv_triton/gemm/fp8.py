"""Products in which weights and rows are both e4m3 (W8A8): rows are rounded when they come, with a scale each."""

from __future__ import annotations

import torch

from lsv_triton.device_table import launch
from lsv_triton.gemm.product import float_product
from lsv_triton.gemm.rounding import round_rows, round_rows_reference
from lsv_triton.gemm.weights import Form, Packed


def fp8_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    largest: float = 448.0,
) -> torch.Tensor:
    """x [T, K] -> ``x @ (weight * scales).T + bias`` [T, N] in x's dtype; weight float8_e4m3fn [N, K], scales float32
    [N], bias [N]. A row's largest number becomes ``largest``: 240 where e4m3 ends there, as on Gaudi 2.

    Where the matrix unit takes no e4m3, numbers are multiplied in float16, which holds all of them.
    """
    out = torch.empty((len(x), len(weight)), dtype=x.dtype, device=x.device)
    if not len(x):
        return out
    codes, row_scales = round_rows(x, torch.float8_e4m3fn, largest=largest)
    sizes = launch("product", x.device)
    if sizes["fp8"]:
        codes, form = codes.view(torch.float8_e4m3fn), Form()
    else:
        weight, form = weight.view(torch.uint8), Form("e4m3")
    packed = Packed(
        form,
        len(weight),
        x.shape[1],
        sizes["span"],
        weight[None],
        scales[None, None],
        bias=None if bias is None else bias[None],
    )
    float_product(codes, packed, out, row_scales=row_scales[0])
    return out


def fp8_gemm_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    largest: float = 448.0,
) -> torch.Tensor:
    """The same in plain torch."""
    codes, row_scales = round_rows_reference(x, torch.float8_e4m3fn, largest=largest)
    y = codes.float() @ weight.float().T * scales * row_scales[0, :, None]
    return (y if bias is None else y + bias.float()).to(x.dtype)
