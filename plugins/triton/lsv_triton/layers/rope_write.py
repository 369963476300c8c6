"""From a fused projection to attention in one launch: q and k normed and turned, k and v put into the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lsv_runtime.attention import AttentionLayer
from lsv_runtime.attention.plan import PagedPlan
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_triton.attention.cache import KVCache
from lsv_triton.attention.code_kernels import PLAIN
from lsv_triton.attention.write_kernel import FORMS, keep
from lsv_triton.device_table import launch
from lsv_triton.layers.rope import turn


@triton.jit(do_not_specialize=["lines"])
def _turn_and_write(
    qkv,  # [tokens, HEADS + 2 * KV_HEADS, DIM]; all but tokens are dense
    q_weight,  # [DIM], with NORM
    k_weight,
    positions,  # int64 [tokens]
    table,  # [max_len, 2 * ROTARY]: see lsv_runtime.nn.rope.Rope
    out,  # [tokens, HEADS, DIM] dense
    keys,  # [pages, KV_HEADS, BLOCK, DIM]; all but pages are dense
    values,
    key_scales,  # float32 [pages, KV_HEADS, BLOCK], with INT8
    value_scales,
    slots,  # int32 [tokens]
    lines, token_stride, page_stride, scale_page_stride,
    q_eps, k_eps, key_scale, value_scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr, NORM: tl.constexpr,
    BLOCK: tl.constexpr, FORM: tl.constexpr, LINES: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Each program takes ``LINES`` heads of the projection, of tokens that follow one another."""
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    token, head = (line // (HEADS + 2 * KV_HEADS)).to(tl.int64), line % (HEADS + 2 * KV_HEADS)
    there, is_query, is_value = line < lines, head < HEADS, head >= HEADS + KV_HEADS
    column = tl.arange(0, SPAN)[None, :]
    whole = there[:, None] & (column < DIM)
    start = (qkv + token * token_stride + head * DIM)[:, None]
    position = tl.load(positions + token, mask=there, other=0)[:, None]
    turned = turn(
        start, column, whole, is_query[:, None], q_weight, k_weight, q_eps, k_eps, table, position, DIM, ROTARY, NORM
    ).to(out.dtype.element_ty)
    x = tl.where(is_value[:, None], tl.load(start + column, mask=whole, other=0.0), turned)
    place = (token * HEADS + head) * DIM
    tl.store(out + place[:, None] + column, x, mask=whole & is_query[:, None])

    slot, kv_head = tl.load(slots + token, mask=there, other=0), (head - HEADS) % KV_HEADS
    page, place = (slot // BLOCK).to(tl.int64), kv_head * BLOCK + slot % BLOCK
    into = tl.where(is_value, values, keys) + page * page_stride + place * DIM
    scales = tl.where(is_value, value_scales, key_scales) + page * scale_page_stride + place
    scale = tl.where(is_value, value_scale, key_scale)[:, None]
    keep(x, into[:, None] + column, scales, scale, there & (head >= HEADS), DIM, FORM)


def turn_and_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rope: Rope,
    norms: tuple[RMSNorm, RMSNorm, int] | None,
    layer: AttentionLayer,
    cache: KVCache,
    plan: PagedPlan,
) -> torch.Tensor:
    """qkv [T, heads + 2 * kv_heads, head_dim] and positions int64 [T] -> q turned, [T, heads, head_dim].

    Turned k and v go to the slots of the plan. ``norms`` are as in ``lsv_triton.layers.rope.turn_heads``.
    """
    part, form, (tokens, count, dim) = cache.of(layer), FORMS.get(cache.dtype, PLAIN), qkv.shape
    q_norm, k_norm, _ = norms or (None, None, 0)
    key_scales = part.keys if part.key_scales is None else part.key_scales
    value_scales = part.values if part.value_scales is None else part.value_scales
    out = torch.empty(tokens, layer.heads, dim, dtype=qkv.dtype, device=qkv.device)
    span, tile = triton.next_power_of_2(dim), launch("rope_write", qkv.device)
    together = max(1, tile["elements"] // span)
    _turn_and_write[(triton.cdiv(tokens * count, together),)](
        qkv, rope.table if q_norm is None else q_norm.weight, rope.table if k_norm is None else k_norm.weight,
        positions.contiguous(), rope.table, out, part.keys, part.values, key_scales, value_scales, plan.slots,
        tokens * count, qkv.stride(0), part.keys.stride(0), key_scales.stride(0),
        0.0 if q_norm is None else q_norm.eps, 0.0 if k_norm is None else k_norm.eps,
        layer.key_scale, layer.value_scale,
        HEADS=layer.heads, KV_HEADS=layer.kv_heads, DIM=dim, ROTARY=rope.rope.rotary_dim, NORM=norms is not None,
        BLOCK=cache.block_size, FORM=form.value, LINES=together, SPAN=span, num_warps=tile.warps,
    )  # fmt: skip
    return out
