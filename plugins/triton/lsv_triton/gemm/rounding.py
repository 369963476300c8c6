"""Rows rounded to 8 bits for a product: with a scale each, or one for every group of inputs, or by a stored scale."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch.nn import functional

from lsv_triton.device_table import launch
from lsv_triton.gemm.tiles import decode

NOTHING = 1e-30
"""Numbers that are all smaller count as zeros."""
LARGEST: Mapping[torch.dtype, float] = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0}


@triton.jit
def _nearest_e4m3(x):
    """The code uint8 of the e4m3 number nearest to x float32, halves to even; x is 448 or less."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    small = tl.abs(x) * 512 + 8388608.0  # 2**23: what is behind the point is rounded away
    code = tl.where(size < 0x3C800000, small.to(tl.int32, bitcast=True) & 15, normal)  # below 2**-6
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit(do_not_specialize=("rows",))
def _round_rows(
    x, codes, scales, K, rows, x_stride, stride, group, limit, bound,
    NOTHING: tl.constexpr, FLOAT: tl.constexpr, HALVED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Codes of one row's group of inputs, and its scale. With HALVED they are those of e4m3fnuz: what the same bits are
    in e4m3fn, halved, and no negative zero.
    """
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    largest = tl.zeros((BLOCK,), tl.float32)
    unknown = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, group, BLOCK):
        place = start + tl.arange(0, BLOCK)
        k = number * group + place
        values = tl.load(x + row * x_stride + k, mask=(place < group) & (k < K), other=0).to(tl.float32)
        unknown = unknown | (values != values).to(tl.int32)
        largest = tl.maximum(largest, tl.abs(values))
    peak = tl.minimum(tl.max(largest, axis=0), bound)
    peak = tl.where(tl.max(unknown, axis=0) > 0, float("nan"), peak)
    empty = peak < NOTHING
    scale = tl.where(empty, 1.0, tl.math.div_rn(peak, limit))
    inverse = tl.where(empty, 1.0, tl.math.div_rn(limit + tl.zeros_like(peak), tl.where(empty, 1.0, peak)))
    tl.store(scales + number * rows + row, scale)
    for start in range(0, group, BLOCK):
        place = start + tl.arange(0, BLOCK)
        k = number * group + place
        values = tl.load(x + row * x_stride + k, mask=(place < group) & (k < K), other=0).to(tl.float32)
        if FLOAT:
            scaled = tl.math.div_rn(values, scale + tl.zeros_like(values))
            limited = tl.minimum(tl.maximum(scaled, -limit), limit)
            if HALVED:
                limited *= 2
            found = _nearest_e4m3(tl.where(scaled == scaled, limited, scaled))
            if HALVED:
                found = tl.where(found == 0x80, 0, found).to(tl.uint8)
        else:
            found = ((values * inverse + 12582912.0) - 12582912.0).to(tl.int8)  # 1.5 * 2**23: halves to even
        tl.store(codes + row * stride + k, found, mask=place < group)


@triton.jit
def _round_by_scale(
    x, out, scales, experts, table, K, x_stride, stride, top,
    CODES: tl.constexpr, HALVED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row in units of the scale of its expert: codes uint8, or with CODES false the numbers they are. With HALVED
    codes are those of e4m3fnuz of half the value.
    """
    row = tl.program_id(0).to(tl.int64)
    place = 0
    if experts is not None:
        place = tl.load(experts + row).to(tl.int64)
        if table is not None:
            place = tl.load(table + place).to(tl.int64)
    if place >= 0:
        scale = tl.load(scales + place)
        for start in range(0, K, BLOCK):
            k = start + tl.arange(0, BLOCK)
            values = tl.load(x + row // top * x_stride + k, mask=k < K, other=0).to(tl.float32)
            scaled = tl.math.div_rn(values, scale + tl.zeros_like(values))
            limited = tl.minimum(tl.maximum(scaled, -448.0), 448.0)
            found = _nearest_e4m3(tl.where(scaled == scaled, limited, scaled))
            if HALVED:
                found = tl.where(found == 0x80, 0, found)
                found = tl.where((found & 0x7F) == 0x7F, 0x80, found).to(tl.uint8)
            if not CODES:
                found = decode(found, None, "e4m3", 0.0, 1.0).to(out.dtype.element_ty)
            tl.store(out + row * stride + k, found, mask=k < K)


def round_by_scale(
    x: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype,
    *,
    experts: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    top: int = 1,
) -> torch.Tensor:
    """x [T, K] -> e4m3 of ``clamp(x / scale, ±448)``, [T * top, K]; row ``r`` is made from x's row ``r // top``.

    ``dtype`` is an 8-bit float of the kind e4m3, whose codes come as uint8, or a dtype that holds the numbers. Those of
    e4m3fnuz are halved. Scales float32 [layers]; with ``experts`` int32 [T * top] a row takes that of its expert, or
    where ``table`` has places of experts, that at its place. A row whose expert is nowhere is not written.
    """
    rows, inputs = len(x) * top, x.shape[1]
    codes = dtype in LARGEST
    out = torch.empty((rows, inputs), dtype=torch.uint8 if codes else dtype, device=x.device)
    sizes = launch("round_rows", x.device)
    block = min(sizes["elements"], triton.next_power_of_2(inputs))
    _round_by_scale[(rows,)](
        x, out, scales, experts, table, inputs, x.stride(0), inputs, top,
        CODES=codes, HALVED=dtype == torch.float8_e4m3fnuz, BLOCK=block, num_warps=sizes.warps, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def round_rows(
    x: torch.Tensor,
    dtype: torch.dtype,
    *,
    group: int = 0,
    multiple: int = 1,
    largest: float | None = None,
    bound: float = math.inf,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, K] -> codes [T, K filled up with zeros to a multiple], scales float32 [groups, T]: ``x ≈ codes * scale``.

    ``dtype`` is int8, or an 8-bit float of the kind e4m3 whose codes come as uint8. The largest number of a group of
    inputs, or with 0 of a row, becomes ``largest``; 8-bit floats are clamped to ``bound`` first. Halves round to even.
    A group without a finite number in it has a
    scale that is not finite either.
    """
    rows, inputs = x.shape
    limit = float(LARGEST[dtype] if largest is None else largest)
    width = -(-inputs // multiple) * multiple
    groups = -(-inputs // group) if group else 1
    code = torch.int8 if dtype == torch.int8 else torch.uint8
    covered = groups * group or width
    codes = (torch.empty if covered == width else torch.zeros)((rows, width), dtype=code, device=x.device)
    scales = torch.empty((groups, rows), dtype=torch.float32, device=x.device)
    sizes = launch("round_rows", x.device)
    block = min(sizes["elements"], triton.next_power_of_2(group or width))
    _round_rows[rows, groups](
        x, codes, scales, inputs, rows, x.stride(0), width, group or width, limit, bound,
        NOTHING=NOTHING, FLOAT=dtype != torch.int8, HALVED=dtype == torch.float8_e4m3fnuz,
        BLOCK=block, num_warps=sizes.warps, enable_fp_fusion=False,
    )  # fmt: skip
    return codes, scales


def round_rows_reference(
    x: torch.Tensor,
    dtype: torch.dtype,
    *,
    group: int = 0,
    largest: float | None = None,
    bound: float = math.inf,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in plain torch: codes [T, K] in ``dtype`` and scales [groups, T]."""
    limit = LARGEST[dtype] if largest is None else largest
    inputs = x.shape[1]
    size = group or inputs
    x = functional.pad(x.float(), (0, -inputs % size)).unflatten(1, (-1, size))
    peak = x.abs().amax(dim=-1).clamp(max=bound)
    empty = peak < NOTHING
    scales = torch.where(empty, 1.0, peak / limit)
    if dtype == torch.int8:
        inverse = torch.where(empty, 1.0, torch.full_like(peak, limit) / peak)
        codes = (x * inverse[..., None]).round().to(torch.int8)
    else:
        codes = (x / scales[..., None]).clamp(-limit, limit).to(dtype)
    return codes.flatten(1)[:, :inputs], scales.T.contiguous()
