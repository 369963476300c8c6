"""The attention backend ``cpu-paged``: plans a step in numpy, attends in native code or, without it, in plain torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lsv.kv.spec import KVGroup
from lsv_cpu import native, reference
from lsv_cpu.cache import KVCache, make_cache
from lsv_cpu.codes import FORMS
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec, Int32s
from lsv_runtime.attention.chosen import attend_pattern
from lsv_runtime.attention.paged import PagedBackend
from lsv_runtime.attention.plan import row_starts
from lsv_runtime.devices.device import Device

MAX_HEAD_DIM = 576

_Address = ctypes.c_void_p


class LayerRecord(ctypes.Structure):
    """``Layer`` of native/attention/attention.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "dim", "window", "causal")),
        *((name, ctypes.c_int32) for name in ("distances", "value_dim")),
        *((name, ctypes.c_float) for name in ("scale", "soft_cap")),
        *((name, _Address) for name in ("sinks", "alibi", "biases")),
        *((name, ctypes.c_float) for name in ("key_scale", "value_scale")),
        *((name, ctypes.c_int64) for name in ("key_offset", "value_offset")),
    ]


class _Plan(ctypes.Structure):
    """``Plan`` of native/attention/attention.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("requests", "width")),
        *((name, _Address) for name in ("starts", "context", "tables")),
    ]


class _Cache(ctypes.Structure):
    """``Cache`` of native/attention/attention.h."""

    _fields_ = [
        ("data", _Address),
        ("page", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("block", "form")),
    ]


class _Tensors(ctypes.Structure):
    """``Tensors`` of native/attention/attention.h."""

    _fields_ = [
        *((name, _Address) for name in ("q", "k", "v", "out")),
        *((name, ctypes.c_int64) for name in ("q_stride", "k_stride", "v_stride")),
    ]


class HeadTurnRecord(ctypes.Structure):
    """``HeadTurn`` of native/attention/attention.h."""

    _fields_ = [
        *((name, _Address) for name in ("q_norm", "k_norm")),
        ("eps", ctypes.c_float),
        ("table", _Address),
        ("rotary", ctypes.c_int32),
        ("positions", _Address),
    ]


@dataclass(frozen=True, slots=True)
class CpuAttentionPlan:
    """What a step's rows are, for native code and for plain torch."""

    starts: Int32s
    """[rows + 1]: row r has the tokens ``starts[r]:starts[r + 1]`` of the step."""

    context: Int32s
    """[rows]: tokens of each row, those of earlier steps included."""

    tables: Int32s
    """[rows, blocks]: the pages of each row."""

    record: _Plan
    """The same for native code; it points into the arrays."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A layer over a cache as native code reads it."""

    layer: AttentionLayer
    cache: KVCache | None
    record: LayerRecord

    held: tuple[torch.Tensor | None, ...]
    """Tensors that the record points into."""


class CpuAttention(PagedBackend):
    """Paged attention over a cache in the step's dtype or in 8 bits. Without a ``library`` it uses the one selected for
    the process.

    Row-invariant in native code: an output depends on the request's own tokens only.
    """

    cuts_rows = gathers = mutual = True
    biased = shares_values = sparse = True

    def __init__(self, library: ctypes.CDLL | None = None) -> None:
        self._library = library or native.library()
        self._known: dict[int, _Known] = {}
        self._cache: tuple[KVCache, _Cache] | None = None

    def supports(self, layer: AttentionLayer) -> str | None:
        if layer.head_dim > MAX_HEAD_DIM:
            return f"head size {layer.head_dim} is over {MAX_HEAD_DIM}"
        return super().supports(layer)

    def explain(self, layers: Sequence[AttentionLayer], dtype: torch.dtype) -> str | None:
        if self._library is None:
            return None
        records = [LayerRecord(dim=layer.head_dim, value_dim=layer.value_dim or 0) for layer in layers]
        on_tiles = sum(self._library.lsv_attends_on_tiles(native.DTYPES[dtype], ctypes.byref(one)) for one in records)
        if not on_tiles:
            return None
        return "on AMX tiles" if on_tiles == len(layers) else f"{on_tiles} of {len(layers)} layers on AMX tiles"

    def make_cache(self, spec: CacheSpec, device: Device) -> KVCache:
        self._known.clear()  # the cache before is freed with the last that knows of it
        self._cache = None
        return make_cache(spec)

    def plan(self, batch: BatchLayout, group: KVGroup, into: CpuAttentionPlan | None = None) -> CpuAttentionPlan:
        """``into`` is ignored: the arrays are small, and no step is captured on this platform."""
        if self._library is not None:
            self._library.lsv_wake_team()  # a step begins: wake up parked threads while the host prepares it
        starts = row_starts(batch)
        context = np.ascontiguousarray(batch.context, np.int32)
        table = np.ascontiguousarray(self.table_of(batch, group), np.int32)
        record = _Plan(len(context), table.shape[1], starts.ctypes.data, context.ctypes.data, table.ctypes.data)
        return CpuAttentionPlan(starts, context, table, record)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: AttentionLayer,
        cache: KVCache | None,
        plan: CpuAttentionPlan,
    ) -> torch.Tensor:
        if layer.pattern is not None:
            return attend_pattern(self, q, k, v, layer, cache, plan)
        if self._library is None:
            return reference.attend(q, k, v, layer, cache, plan.starts, plan.context, plan.tables)
        assert cache is None or cache.dtype in (q.dtype, *FORMS), "the cache and the step differ in dtype"
        q = _dense_heads(q)
        out = torch.empty(*q.shape[:2], layer.value_dim or layer.head_dim, dtype=q.dtype)
        tensors = _Tensors(q=q.data_ptr(), out=out.data_ptr(), q_stride=q.stride(0))
        if k is not None:
            k = _dense_heads(k)
            tensors.k, tensors.k_stride = k.data_ptr(), k.stride(0)
        if v is not None:
            v = _dense_heads(v)
            tensors.v, tensors.v_stride = v.data_ptr(), v.stride(0)
        status = self._library.lsv_attend(
            native.DTYPES[q.dtype],
            ctypes.byref(self.layer_record(layer, cache)),
            ctypes.byref(plan.record),
            None if cache is None else ctypes.byref(self.cache_record(cache)),
            ctypes.byref(tensors),
        )
        if status:
            raise native.refusal(status)
        return out

    def write(
        self, k: torch.Tensor, v: torch.Tensor | None, layer: AttentionLayer, cache: KVCache, plan: CpuAttentionPlan
    ) -> None:
        if self._library is None:
            reference.write(k, v, layer, cache, plan.starts, plan.context, plan.tables)
            return
        assert cache.dtype in (k.dtype, *FORMS), "the cache and the step differ in dtype"
        k = _dense_heads(k)
        tensors = _Tensors(k=k.data_ptr(), k_stride=k.stride(0))
        if v is not None:
            v = _dense_heads(v)
            tensors.v, tensors.v_stride = v.data_ptr(), v.stride(0)
        self._library.lsv_write(
            native.DTYPES[k.dtype],
            ctypes.byref(self.layer_record(layer, cache)),
            ctypes.byref(plan.record),
            ctypes.byref(self.cache_record(cache)),
            ctypes.byref(tensors),
        )

    def lengths(self, plan: CpuAttentionPlan) -> tuple[Int32s, Int32s]:
        return plan.starts, plan.context

    def read_cached(
        self, layer: AttentionLayer, cache: KVCache, plan: CpuAttentionPlan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = zip(plan.context.tolist(), plan.tables, strict=True)
        found = [reference.read(layer, cache, table, length) for length, table in rows]
        keys, values = (torch.cat(parts) for parts in zip(*found, strict=True))
        return keys, values

    def layer_record(self, layer: AttentionLayer, cache: KVCache | None) -> LayerRecord:
        """The layer over this cache as native code reads it."""
        known = self._known.get(layer.index)
        if known is None or known.layer is not layer or known.cache is not cache:
            known = self._known[layer.index] = _describe_layer(layer, cache)
        return known.record

    def cache_record(self, cache: KVCache) -> _Cache:
        """The cache as native code reads it."""
        if self._cache is None or self._cache[0] is not cache:
            form = FORMS.get(cache.dtype, 0)
            self._cache = (cache, _Cache(cache.pages.data_ptr(), cache.pages.shape[1], cache.block_size, form))
        return self._cache[1]


def _describe_layer(layer: AttentionLayer, cache: KVCache | None) -> _Known:
    sinks, alibi, biases = _floats(layer.sinks), _floats(layer.alibi), _floats(layer.biases)
    keys = 0 if cache is None else cache.start(layer)
    values = keys if cache is None or layer.value_dim else keys + cache.half(layer)
    record = LayerRecord(
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        dim=layer.head_dim,
        window=layer.window or 0,
        causal=layer.causal,
        distances=0 if biases is None else biases.shape[1],
        value_dim=layer.value_dim or 0,
        scale=layer.scale,
        soft_cap=layer.soft_cap or 0.0,
        sinks=None if sinks is None else sinks.data_ptr(),
        alibi=None if alibi is None else alibi.data_ptr(),
        biases=None if biases is None else biases.data_ptr(),
        key_scale=layer.key_scale,
        value_scale=layer.value_scale,
        key_offset=keys,
        value_offset=values,
    )
    return _Known(layer, cache, record, (sinks, alibi, biases))


def _floats(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().float().contiguous()


def _dense_heads(x: torch.Tensor) -> torch.Tensor:
    """``x`` [T, heads, dim] with the heads of each token contiguous, as they are in a slice of a fused projection."""
    _, head, feature = x.stride()
    return x if feature == 1 and head == x.shape[2] else x.contiguous()
