"""The attention backend ``triton-paged``: the same kernels for prompts, decoding and steps that mix them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec, Int32s
from lsv_runtime.attention.paged import PagedBackend
from lsv_runtime.attention.plan import PagedPlan, make_plan, table_shape
from lsv_runtime.devices.device import Device
from lsv_triton.attention.cache import KVCache, make_cache
from lsv_triton.attention.code_kernels import E4M3, E5M2, PLAIN
from lsv_triton.attention.kernels import attend_tiles, merge_parts
from lsv_triton.attention.schedule import Sizes, Tiling, make_schedule
from lsv_triton.attention.write_kernel import FORMS, write
from lsv_triton.device_table import Launch, launch

MAX_HEAD_DIM = 256

_PARTS_BYTES = 64 << 20  # most bytes that parts may take
_AHEAD = 8  # parts that are loaded at once
_DOTS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
if triton.knobs.runtime.interpret:  # float32 is the only dtype that the interpreter computes in reliably
    _DOTS = dict.fromkeys(_DOTS, tl.float32)


class TritonAttention(PagedBackend):
    """Row-invariant: a token's result depends on its request's tokens only, whether it is decoded or part of a prompt,
    and however that is cut into chunks.

    Grids follow from shapes alone, so every step can be captured and replayed. What their programs do is planned by
    the contexts of the rows.
    """

    captures_prompts = biased = shares_values = mutual = sparse = True

    def __init__(self) -> None:
        self._tilings: dict[int, Tiling] = {}

    def supports(self, layer: AttentionLayer) -> str | None:
        if layer.head_dim > MAX_HEAD_DIM:
            return f"head size {layer.head_dim} is over {MAX_HEAD_DIM}"
        return super().supports(layer)

    def make_cache(self, spec: CacheSpec, device: Device) -> KVCache:
        self._tilings = {}
        for layer in spec.layers:
            tile = _Tile.of(layer, max(2, spec.dtype.itemsize), device.torch_device)
            self._tilings.setdefault(layer.group, tile.tiling(layer))
        return make_cache(spec, device.torch_device)

    def plan(self, batch: BatchLayout, group: KVGroup, into: PagedPlan | None = None) -> PagedPlan:
        table, tiling = self.rows_of(batch, group), self._tilings.get(group.index)
        more: tuple[Int32s, ...] = ()
        if tiling is not None and table.shape[1]:
            schedule = make_schedule(batch, tiling, table_shape(batch, table)[1] * self.block_size)
            more = (schedule.units, schedule.cut)
        return make_plan(batch, table, self.block_size, self.device, into, more)

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
            k = _dense(k)
            return _attend(q, layer, plan, _in_step(k, k if v is None else _dense(v)), None)
        if k is not None:
            self.write(k, v, layer, cache, plan)
        # a layer that is unlike the first of its group makes no use of the schedule
        tiling = self._tilings.get(layer.group) if plan.more else None
        return _attend(q, layer, plan, _in_cache(cache, layer, plan), tiling)

    def write(
        self, k: torch.Tensor, v: torch.Tensor | None, layer: AttentionLayer, cache: KVCache, plan: PagedPlan
    ) -> None:
        write(_dense(k), None if v is None else _dense(v), layer, cache, plan)


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
        value_unit=(layer.value_scale if layer.value_dim is None else layer.key_scale) if scaled else 1.0,
    )


@dataclass(frozen=True, slots=True)
class _Tile:
    """Of scores, rows times keys, and how a program computes one."""

    rows: int
    keys: int
    warps: int
    span: int
    sizes: Launch

    @classmethod
    def of(cls, layer: AttentionLayer, itemsize: int, device: torch.device) -> _Tile:
        """That of a layer whose queries have elements of so many bytes."""
        sizes, ratio = launch("attention", device), layer.heads // layer.kv_heads
        span = max(16, triton.next_power_of_2(layer.head_dim))
        large = max(1, span * itemsize // 256)  # the table's sizes are for heads of 128 features of 2 bytes
        rows = max(16, sizes["rows"] * 2 // max(2, large), triton.next_power_of_2(ratio))
        return cls(rows, max(16, sizes["keys"] // large), sizes.warps * min(2, large), span, sizes)

    def for_one_token(self, layer: AttentionLayer, itemsize: int) -> _Tile:
        """A tile of fewer rows, where one computes a row by the same operations: in floats of 16 bits, whose products
        Triton cuts over warps by columns if there are fewer rows than columns, else by rows.
        """
        few = self.sizes["few"]
        if itemsize != 2 or self.warps != self.sizes.warps or not layer.heads // layer.kv_heads <= few < self.rows:
            return self
        warps = self.warps if self.rows < self.span else self.warps * few // self.rows
        return replace(self, rows=few, warps=max(1, warps))

    def tiling(self, layer: AttentionLayer) -> Tiling:
        return Tiling(
            queries=self.rows // (layer.heads // layer.kv_heads),
            causal=layer.causal,
            window=layer.window,
            programs=triton.cdiv(self.sizes["programs"], layer.kv_heads),
            segment=self.sizes["segment"],
            doubling=self.sizes["doubling"],
            most_parts=_PARTS_BYTES // (4 * layer.heads * (layer.head_dim + 2)),
        )


def _attend(
    q: torch.Tensor, layer: AttentionLayer, plan: PagedPlan, source: _Keys, tiling: Tiling | None
) -> torch.Tensor:
    tokens, ratio = q.shape[0], layer.heads // layer.kv_heads
    tile = _Tile.of(layer, q.itemsize, q.device)
    planned = tiling is not None and tiling == tile.tiling(layer)
    if plan.decoding:
        tile = tile.for_one_token(layer, q.itemsize)
    if tiling is not None and planned:
        (units, cut), sizes = plan.more, tiling.sizes(tokens, plan.rows, source.longest)
    else:
        units = cut = plan.starts
        sizes = Sizes(plan.rows if plan.decoding else tokens // (tile.rows // ratio) + plan.rows, 1, 0, 0)
    out, room = torch.empty(q.shape, dtype=q.dtype, device=q.device), sizes.parts
    parts = out.new_empty(room * layer.heads * (layer.head_dim + 2), dtype=torch.float32) if room else out
    shared = {
        "RATIO": ratio,
        "DIM": layer.head_dim,
        "SINKS": layer.sinks is not None,
        "SPAN": tile.span,
        "enable_fp_fusion": False,  # or the compiler might fuse differently in the two kernels
    }
    sinks = q if layer.sinks is None else layer.sinks
    biases = q if layer.biases is None else layer.biases
    phases, pattern = _pattern(layer)
    attend_tiles[sizes.units, layer.kv_heads](
        q, out, parts, *source.tensors, sinks, q if layer.alibi is None else layer.alibi, biases, units,
        plan.starts, plan.context, plan.tables, plan.rows, room, plan.tables.stride(0), biases.shape[1],
        *phases,
        *q.stride()[:2], *source.strides, *_scales(layer, source), source.value_unit,
        BLOCK=source.block, PAGED=source.paged, FORM=source.form, CAUSAL=layer.causal, WINDOW=layer.window or 0,
        CAP=bool(layer.soft_cap), ALIBI=layer.alibi is not None, BIASED=layer.biases is not None,
        **pattern,
        DECODING=plan.decoding and not planned, PLANNED=planned, CUT=bool(room),
        SEGMENT=tile.sizes["segment"], DOUBLING=tile.sizes["doubling"], ROWS=tile.rows, KEYS=tile.keys,
        DOT=_DOTS[q.dtype], **shared, num_warps=tile.warps, num_stages=tile.sizes.stages,
    )  # fmt: skip
    if room:
        merge_parts[sizes.cut, layer.kv_heads, sizes.queries](
            out, parts, cut, sinks, plan.starts, room, source.value_unit, QUERIES=sizes.queries,
            LANES=triton.next_power_of_2(ratio), AHEAD=_AHEAD, **shared, num_warps=tile.sizes.warps,
        )  # fmt: skip
    return out[..., : layer.value_dim]


def _pattern(layer: AttentionLayer) -> tuple[tuple[int, int], Mapping[str, int]]:
    """The phase of the first head's pattern, and from each head to the next; and the sizes of its blocks."""
    pattern = layer.pattern
    if pattern is None:
        return (0, 0), {"SIZE": 0, "LOCAL": 0, "STRIDE": 1}
    phases = (pattern.first_head * pattern.shift + 1, pattern.shift)
    return phases, {"SIZE": pattern.size, "LOCAL": pattern.local, "STRIDE": pattern.stride}


def _scales(layer: AttentionLayer, source: _Keys) -> tuple[float, float]:
    """What a score is multiplied by, and the cap that is applied then; scores end up in base 2."""
    scale = layer.scale * source.unit
    if layer.soft_cap:
        return scale / layer.soft_cap, layer.soft_cap / math.log(2)
    return scale / math.log(2), 0.0


def _dense(x: torch.Tensor) -> torch.Tensor:
    """``x`` with contiguous heads, which slices of a fused projection have."""
    return x if x.stride(2) == 1 else x.contiguous()
