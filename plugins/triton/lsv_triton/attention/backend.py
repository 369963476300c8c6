"""The attention backend ``triton-paged``: the same kernels for prompts, decoding and steps that mix them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from lsv.attention import AttentionLayer, CacheSpec
from lsv.attention.paged import PagedBackend
from lsv.attention.plan import PagedPlan
from lsv.platform import Device
from lsv_triton.attention.cache import KVCache, make_cache
from lsv_triton.attention.code_kernels import E4M3, E5M2, PLAIN
from lsv_triton.attention.kernels import attend_tiles, merge_segments
from lsv_triton.attention.write_kernel import FORMS, write
from lsv_triton.device_table import launch

MAX_HEAD_DIM = 256

_PARTS_BYTES = 64 << 20  # most bytes that the results of segments may take
_DOTS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
if triton.knobs.runtime.interpret:  # float32 is the only dtype that the interpreter computes in reliably
    _DOTS = dict.fromkeys(_DOTS, tl.float32)


class TritonAttention(PagedBackend):
    """Row-invariant: a token's result depends on its request's tokens only, whether it is decoded or part of a prompt,
    and however that is cut into chunks.

    Grids follow from shapes alone, so every step can be captured and replayed.
    """

    def supports(self, layer: AttentionLayer) -> str | None:
        if layer.head_dim > MAX_HEAD_DIM:
            return f"head size {layer.head_dim} is over {MAX_HEAD_DIM}"
        return super().supports(layer)

    def make_cache(self, spec: CacheSpec, device: Device) -> KVCache:
        return make_cache(spec, device.torch_device)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: AttentionLayer,
        cache: KVCache | None,
        plan: PagedPlan,
    ) -> torch.Tensor:
        q = _dense(q)
        if cache is None:
            assert k is not None, "without a cache there must be keys"
            assert v is not None, "without a cache there must be values"
            return _attend(q, layer, plan, _in_step(_dense(k), _dense(v)))
        if k is not None and v is not None:
            write(_dense(k), _dense(v), layer, cache, plan)
        return _attend(q, layer, plan, _in_cache(cache, layer, plan))

    def write(self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, cache: KVCache, plan: PagedPlan) -> None:
        write(_dense(k), _dense(v), layer, cache, plan)


@dataclass(frozen=True, slots=True, eq=False)
class _Keys:
    """Where a layer's keys and values are, as ``attend_tiles`` takes it."""

    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    """Keys, values, and the scales of both."""

    strides: tuple[int, ...]

    longest: int
    """Bounds the keys of a row."""

    block: int = 1
    paged: bool = False

    form: int = PLAIN.value
    """A form of ``code_kernels``."""

    unit: float = 1.0
    """Keys are in units of this."""

    value_unit: float = 1.0
    """Values are in units of this."""


def _in_step(k: torch.Tensor, v: torch.Tensor) -> _Keys:
    return _Keys((k, v, k, v), (0, *k.stride()[:2], *v.stride()[:2], 0), k.shape[0])


def _in_cache(cache: KVCache, layer: AttentionLayer, plan: PagedPlan) -> _Keys:
    part = cache.of(layer)
    form = FORMS.get(cache.dtype, PLAIN)
    key_scales = part.keys if part.key_scales is None else part.key_scales
    value_scales = part.values if part.value_scales is None else part.value_scales
    head = part.keys.stride(1)
    scaled = form in (E4M3, E5M2)
    return _Keys(
        (part.keys, part.values, key_scales, value_scales),
        (part.keys.stride(0), 0, head, 0, head, key_scales.stride(0)),
        longest=plan.tables.shape[1] * cache.block_size,
        block=cache.block_size,
        paged=True,
        form=form.value,
        unit=layer.key_scale if scaled else 1.0,
        value_unit=layer.value_scale if scaled else 1.0,
    )


def _attend(q: torch.Tensor, layer: AttentionLayer, plan: PagedPlan, source: _Keys) -> torch.Tensor:
    tokens, ratio = q.shape[0], layer.heads // layer.kv_heads
    span = max(16, triton.next_power_of_2(layer.head_dim))
    tile = launch("attention", q.device)
    large = max(1, span * q.itemsize // 256)  # the table's sizes are for heads of 128 features of 2 bytes
    rows = max(16, tile["rows"] * 2 // max(2, large), triton.next_power_of_2(ratio))
    segments = max(1, triton.cdiv(source.longest, tile["segment"]))
    tiles = plan.rows if plan.decoding else tokens // (rows // ratio) + plan.rows
    parts = tokens * layer.heads * segments
    split = segments > 1 and tiles * layer.kv_heads < tile["split"] and 4 * parts * layer.head_dim <= _PARTS_BYTES
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    peaks = torch.empty(parts, dtype=torch.float32, device=q.device) if split else out
    totals, sums = (torch.empty_like(peaks), peaks.new_empty(parts * layer.head_dim)) if split else (out, out)
    shared = {
        "RATIO": ratio,
        "DIM": layer.head_dim,
        "PAGED": source.paged,
        "CAUSAL": layer.causal,
        "WINDOW": layer.window or 0,
        "SINKS": layer.sinks is not None,
        "DECODING": plan.decoding,
        "SEGMENT": tile["segment"],
        "SPAN": span,
        "enable_fp_fusion": False,  # or the compiler might fuse differently in the two kernels
    }
    sinks = q if layer.sinks is None else layer.sinks
    attend_tiles[tiles, layer.kv_heads, segments if split else 1](
        q, out, peaks, totals, sums, *source.tensors, sinks, q if layer.alibi is None else layer.alibi,
        plan.starts, plan.context, plan.tables, plan.rows, segments, plan.tables.stride(0),
        *q.stride()[:2], *source.strides, *_scales(layer, source), source.value_unit,
        BLOCK=source.block, FORM=source.form, CAP=bool(layer.soft_cap), ALIBI=layer.alibi is not None, SPLIT=split,
        ROWS=rows, KEYS=max(16, tile["keys"] // large), DOT=_DOTS[q.dtype], **shared,
        num_warps=tile.warps * min(2, large), num_stages=tile.stages,
    )  # fmt: skip
    if split:
        merge_segments[tokens, layer.kv_heads](
            out, peaks, totals, sums, sinks, plan.starts, plan.context, plan.rows, segments, source.value_unit,
            LANES=triton.next_power_of_2(ratio), **shared, num_warps=tile.warps,
        )  # fmt: skip
    return out


def _scales(layer: AttentionLayer, source: _Keys) -> tuple[float, float]:
    """What a score is multiplied by, and the cap that is applied then; scores end up in base 2."""
    scale = layer.scale * source.unit
    if layer.soft_cap:
        return scale / layer.soft_cap, layer.soft_cap / math.log(2)
    return scale / math.log(2), 0.0


def _dense(x: torch.Tensor) -> torch.Tensor:
    """``x`` with contiguous heads, which slices of a fused projection have."""
    return x if x.stride(2) == 1 else x.contiguous()
