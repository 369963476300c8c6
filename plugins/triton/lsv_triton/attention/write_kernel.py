"""Putting a step's keys and values into the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lsv_runtime.attention import AttentionLayer
from lsv_runtime.attention.plan import PagedPlan
from lsv_triton.attention.cache import KVCache
from lsv_triton.attention.code_kernels import E4M3, E5M2, INT8, PLAIN, code, integer
from lsv_triton.attention.codes import LARGEST_INTEGER, SMALLEST_SCALE
from lsv_triton.device_table import launch

FORMS = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2, torch.int8: INT8}
"""Forms of ``code_kernels`` by the dtype of a cache; others are ``PLAIN``."""

_LARGEST = tl.constexpr(float(LARGEST_INTEGER))
_SMALLEST = tl.constexpr(SMALLEST_SCALE)


@triton.jit(do_not_specialize=["tokens"])
def _write(
    k,  # [tokens, KV_HEADS, DIM]; the last axis is dense
    v,
    keys,  # [pages, KV_HEADS, BLOCK, DIM]; all but pages are dense
    values,
    key_scales,  # float32 [pages, KV_HEADS, BLOCK], with INT8
    value_scales,
    slots,  # int32 [tokens]
    tokens, k_stride, k_head_stride, v_stride, v_head_stride, page_stride, scale_page_stride,
    key_scale, value_scale,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, FORM: tl.constexpr,
    VALUES: tl.constexpr, LINES: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Each program writes ``LINES`` heads of tokens that follow one another; without ``VALUES`` their keys alone."""
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    token, head = (line // KV_HEADS).to(tl.int64), line % KV_HEADS
    there = token < tokens
    slot = tl.load(slots + token, mask=there, other=0)
    page, place = (slot // BLOCK).to(tl.int64), head * BLOCK + slot % BLOCK
    at, scale_at = page * page_stride + place * DIM, page * scale_page_stride + place
    k_at = token * k_stride + head * k_head_stride
    _copy(k, k_at, keys, at, key_scales, scale_at, key_scale, there, DIM, FORM, SPAN)
    if VALUES:
        v_at = token * v_stride + head * v_head_stride
        _copy(v, v_at, values, at, value_scales, scale_at, value_scale, there, DIM, FORM, SPAN)


@triton.jit
def _copy(
    source, source_at, into, into_at, scales, scale_at, scale, there,
    DIM: tl.constexpr, FORM: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Heads that begin at ``source_at`` [lines], in the form of the cache, to ``into_at``."""
    feature = tl.arange(0, SPAN)[None, :]
    x = tl.load(source + source_at[:, None] + feature, mask=there[:, None] & (feature < DIM), other=0.0)
    keep(x, into + into_at[:, None] + feature, scales + scale_at, scale, there, DIM, FORM)


@triton.jit
def keep(x, into, scales, scale, there, DIM: tl.constexpr, FORM: tl.constexpr):
    """Heads [lines, SPAN], in the form of the cache, to the places ``into`` [lines, SPAN], and their scales to
    ``scales`` [lines]. Floats of 8 bits are in units of ``scale``, one number or [lines, 1].
    """
    feature = tl.arange(0, x.shape[1])[None, :]
    if FORM == PLAIN:
        stored = x
    elif FORM == INT8:
        number = x.to(tl.float32)
        broken = tl.max((number != number).to(tl.int32), axis=1) > 0
        own = tl.where(broken, float("nan"), tl.div_rn(tl.max(tl.abs(number), axis=1), _LARGEST))
        tl.store(scales, own, mask=there)
        kept = own >= _SMALLEST
        units = tl.div_rn(number, tl.where(kept, own, 1.0)[:, None] + tl.zeros_like(number))
        stored = integer(tl.where(kept[:, None], units, 0.0))
    else:
        tl.static_assert(FORM == E4M3 or FORM == E5M2)  # noqa: SIM109  kernels know no "in"
        number = x.to(tl.float32)
        stored = code(tl.div_rn(number, scale + tl.zeros_like(number)), FORM)
    tl.store(into, stored, mask=there[:, None] & (feature < DIM))


def write(k: torch.Tensor, v: torch.Tensor | None, layer: AttentionLayer, cache: KVCache, plan: PagedPlan) -> None:
    """Put K and V [tokens, kv_heads, head_dim], slices of a fused projection perhaps, into the slots of the plan."""
    values = k if v is None else v
    part, form, tokens = cache.of(layer), FORMS.get(cache.dtype, PLAIN), k.shape[0]
    key_scales = part.keys if part.key_scales is None else part.key_scales
    value_scales = part.values if part.value_scales is None else part.value_scales
    span, tile = triton.next_power_of_2(layer.head_dim), launch("kv_write", k.device)
    lines = max(1, tile["elements"] // span)
    _write[(triton.cdiv(tokens * layer.kv_heads, lines),)](
        k, values, part.keys, part.values, key_scales, value_scales, plan.slots,
        tokens, *k.stride()[:2], *values.stride()[:2], part.keys.stride(0), key_scales.stride(0),
        layer.key_scale, layer.value_scale,
        KV_HEADS=layer.kv_heads, DIM=layer.head_dim, BLOCK=cache.block_size, FORM=form.value,
        VALUES=v is not None, LINES=lines, SPAN=span, num_warps=tile.warps,
    )  # fmt: skip
