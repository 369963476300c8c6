"""Matrix products over stacks of weights: which tiles a product is cut into, and whether parts of it run side by side.

None of that changes the bits of a row's result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from lsv_triton.device_table import launch
from lsv_triton.gemm.integers import multiply_integers
from lsv_triton.gemm.kernels import add_parts, multiply
from lsv_triton.gemm.rounding import round_by_scale, round_rows
from lsv_triton.gemm.weights import Packed, Stack

_FLOATS = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e4m3fnuz: tl.float8e4b8,
}
_FEW, _SOME = 16, 64


@dataclass(frozen=True, slots=True)
class Route:
    """Rows sorted by expert: ``pairs`` int32 [M] names them, ``tiles`` int32 [count, 3] are runs of rows of one expert
    (expert, first, end), of ``rows`` at most. Empty ones are no work. ``size`` is that of the tiles. ``experts`` int32
    [M] and ``table`` are what the rows were sorted by.
    """

    pairs: torch.Tensor
    tiles: torch.Tensor
    rows: int
    size: str
    experts: torch.Tensor
    table: torch.Tensor | None = None


def size_of(rows: int) -> str:
    """Which of an op's tiles a product of so many rows takes."""
    return "few" if rows <= _FEW else "some" if rows <= _SOME else "many"


def product(x: torch.Tensor, stack: Stack, route: Route | None = None, top: int = 1) -> torch.Tensor:
    """x [T, K] -> [T, N] in x's dtype; with a route [T * top, N], where row ``r`` is made from x's row ``r // top``."""
    out = torch.empty((len(x) * top, stack.outputs), dtype=x.dtype, device=x.device)
    if len(out):
        if stack.packed.input_scales is not None:
            _static_product(x, stack, out, route, top)
        elif stack.rounds:
            _float8_product(x, stack, out, route, top)
        else:
            multiply = _integer_product if stack.op == "int8" else float_product
            multiply(x, stack.packed, out, route, top)
    return out


def _float8_product(x: torch.Tensor, stack: Stack, out: torch.Tensor, route: Route | None, top: int) -> None:
    """Where the matrix unit takes no 8-bit floats, numbers are multiplied in float16, which holds all of them."""
    native, group = stack.native, stack.packed.form.group
    codes, row_scales = round_rows(
        x, native or torch.float8_e4m3fn, group=group, multiple=group or 1, bound=stack.input_bound
    )
    codes = codes if native is None else codes.view(native)
    float_product(codes, stack.packed, out, route, top, row_scales=row_scales)


def _static_product(x: torch.Tensor, stack: Stack, out: torch.Tensor, route: Route | None, top: int) -> None:
    """Weights' scales hold those of the rows. Every pair of a row and an expert is a row of its own: experts may differ
    in their scales. Where the matrix unit takes no 8-bit floats, the rows' dtype holds the same numbers.
    """
    native, scales = stack.native, stack.packed.input_scales
    experts, table = (None, None) if route is None else (route.experts, route.table)
    rows = round_by_scale(x, scales, native or x.dtype, experts=experts, table=table, top=top)
    float_product(rows if native is None else rows.view(native), stack.packed, out, route)


def float_product(
    x: torch.Tensor,
    weights: Packed,
    out: torch.Tensor,
    route: Route | None = None,
    top: int = 1,
    *,
    row_scales: torch.Tensor | None = None,
) -> None:
    """x [T, K] of floats, or uint8 codes of e4m3, into out [T * top, N]; row_scales float32 [groups, T] of codes."""
    form, device, rows = weights.form, x.device, len(out)
    common = launch("product", device)
    sizes = launch(f"product.{size_of(rows) if route is None else route.size}", device)
    block = sizes["rows"] if route is None else route.rows
    step = weights.span * form.codes
    part = max(1, common["part"] // step)
    parts = triton.cdiv(triton.cdiv(weights.inputs, step), part)
    tiles = triton.cdiv(rows, block) if route is None else len(route.tiles)
    late = form.group > 0 and (weights.whole or row_scales is not None)
    outputs = sizes["outputs"]
    columns = triton.cdiv(weights.outputs, outputs)
    split = route is None and parts > 1 and tiles * columns < common["programs"]
    # groups that end inside a step have a scale for each weight: several steps of those are too much shared memory
    stages = 1 if form.group % weights.span else sizes.stages
    into = torch.empty((parts, *out.shape), dtype=torch.float32, device=device) if split else out
    codes = x.dtype == torch.uint8
    rounding = tl.float16 if codes else _FLOATS[x.dtype]
    multiply[tiles, columns, parts if split else 1](
        x, weights.weight, weights.scales, weights.firsts if weights.whole else weights.offsets,
        weights.table, weights.order, weights.bias, row_scales, into,
        None if route is None else route.tiles, None if route is None else route.pairs,
        rows, weights.outputs, weights.inputs, *reversed(weights.weight.shape[1:]), weights.groups, len(x), x.stride(0),
        top,
        VALUES=form.values, X_VALUES="e4m3" if codes else "plain", GROUP=form.group, FIRST=form.first, STEP=form.step,
        CODES=form.codes, SPAN=weights.span, EVEN=weights.inputs % step == 0, PART=part, SPLIT=split,
        WHOLE=weights.whole, LATE=late, TILE=weights.tile, ROUND=rounding, DOT=_operand(rounding), PTX=weights.ptx,
        BLOCK_M=block, BLOCK_N=outputs, num_warps=sizes.warps, num_stages=stages, enable_fp_fusion=False,
    )  # fmt: skip
    if split:
        width = common["outputs"]
        scales, row_scales = (weights.scales, row_scales) if form.group == 0 else (None, None)
        add_parts[rows, triton.cdiv(weights.outputs, width)](
            into, scales, row_scales, weights.bias, out, rows, weights.outputs,
            PARTS=parts, BLOCK_N=width, num_warps=common.warps, enable_fp_fusion=False,
        )  # fmt: skip


def _integer_product(x: torch.Tensor, weights: Packed, out: torch.Tensor, route: Route | None, top: int) -> None:
    span, group, rows = weights.span, weights.form.group, len(out)
    codes, row_scales = round_rows(x, torch.int8, group=group, multiple=group or span)
    sizes = launch(f"int8.{size_of(rows) if route is None else route.size}", x.device)
    block = sizes["rows"] if route is None else route.rows
    tiles = triton.cdiv(rows, block) if route is None else len(route.tiles)
    multiply_integers[tiles, triton.cdiv(weights.outputs, sizes["outputs"])](
        codes, row_scales, weights.weight, weights.scales, weights.bias, out,
        None if route is None else route.tiles, None if route is None else route.pairs,
        rows, weights.outputs, weights.inputs, len(x), codes.stride(0), top,
        GROUP=group, SPAN=span, EVEN=weights.inputs % span == 0, BLOCK_M=block, BLOCK_N=sizes["outputs"],
        num_warps=sizes.warps, num_stages=sizes.stages, enable_fp_fusion=False,
    )  # fmt: skip


def _operand(dtype: Any) -> Any:
    """What the matrix unit gets: under the interpreter, which can't compute in 16 bits, the same numbers in float32."""
    return tl.float32 if triton.knobs.runtime.interpret else dtype
