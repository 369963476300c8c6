"""The attention backend ``flashinfer`` over a paged cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from lsv.kv.spec import KVGroup
from lsv_base.errors import ConfigError
from lsv_cuda import libraries
from lsv_cuda.flashinfer.calls import FlashInfer, Form
from lsv_cuda.flashinfer.lengths import Lengths, find_lengths, find_step_lengths
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.attention.cache import PagedCache, Pages, make_cache
from lsv_runtime.attention.paged import PagedBackend
from lsv_runtime.devices.device import Device, Event

_FLOATS = (torch.float16, torch.bfloat16)
_CODES = (torch.float8_e4m3fn, torch.float8_e5m2)
_STEP_BLOCK = 16
"""Tokens of a page where a step has no cache."""


@dataclass(slots=True, eq=False)
class Wrapped:
    """One of the library's wrappers."""

    wrapper: Any
    planned: Lengths | None = None
    """What it is planned for."""
    copied: Event | None = None
    """Behind the copies that its last plan has ended with."""


@dataclass(slots=True, eq=False)
class FlashInferPlan:
    """What the layers of one group share in a step; the library's wrappers are planned by the first layer of a form."""

    group: int
    lengths: Lengths
    fixed: bool
    """Whether it is of a shape that comes again, and may be captured: it then has wrappers of its own."""
    wrappers: dict[Form, Wrapped] = field(default_factory=dict)


class FlashInferAttention(PagedBackend):
    """A call a layer beside the one that writes to the cache. Not row-invariant: the library splits rows by the whole
    batch.

    What a plan has in the wrapper's own memory a captured run reads there, so steps that are replayed have wrappers for
    themselves, planned again for each; all other steps take turns.
    """

    def __init__(self, library: FlashInfer | None = None) -> None:
        self._library: FlashInfer = library or libraries.obtain(libraries.FLASHINFER)
        self._workspace: torch.Tensor | None = None
        self._shared: dict[tuple[int, bool, Form], Wrapped] = {}

    def supports(self, layer: AttentionLayer) -> str | None:
        return self._library.why_not(layer) or super().supports(layer)

    def make_cache(self, spec: CacheSpec, device: Device) -> PagedCache:
        if spec.dtype not in (*_FLOATS, *_CODES):
            raise ConfigError(
                f"FlashInfer has no KV cache of {spec.dtype}: choose float16 or bfloat16, with a cache of the same or "
                "of 8-bit floats, or another attention backend",
                param="kv_cache_dtype",
            )
        return make_cache(spec, device.torch_device)

    def plan(self, batch: BatchLayout, group: KVGroup, into: FlashInferPlan | None = None) -> FlashInferPlan:
        table = self.rows_of(batch, group)
        if not table.shape[1]:
            return FlashInferPlan(group.index, find_step_lengths(batch, _STEP_BLOCK, self.device), fixed=False)
        if into is None:
            lengths = find_lengths(batch, table, self.block_size, self.device, group.window)
            return FlashInferPlan(group.index, lengths, fixed=batch.blocks > 0)
        assert into.fixed, "the plan is of a step that does not come again"
        into.lengths = find_lengths(batch, table, self.block_size, self.device, group.window, into.lengths)
        for form, held in into.wrappers.items():
            self._plan_wrapper(held, form, into.lengths)
        return into

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: AttentionLayer,
        cache: PagedCache | None,
        plan: FlashInferPlan,
    ) -> torch.Tensor:
        pages = _make_pages(plan.lengths, layer, k) if cache is None else cache.of(layer)
        if k is not None and v is not None:
            self._write(k, v, pages, layer, plan.lengths)
        form = Form(
            layer.heads, layer.kv_heads, layer.head_dim, layer.scale, layer.causal, layer.window, layer.soft_cap,
            q.dtype, pages[0].dtype,
        )  # fmt: skip
        scales = (layer.key_scale, layer.value_scale) if pages[0].dtype in _CODES else (1.0, 1.0)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self._library.run(self._wrapper(plan, form), _dense(q), pages, out, *scales)
        return out

    def write(
        self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, cache: PagedCache, plan: FlashInferPlan
    ) -> None:
        self._write(k, v, cache.of(layer), layer, plan.lengths)

    def _write(self, k: torch.Tensor, v: torch.Tensor, pages: Pages, layer: AttentionLayer, lengths: Lengths) -> None:
        dtype = pages[0].dtype
        if dtype in _CODES:
            k, v = _encode(k, layer.key_scale, dtype), _encode(v, layer.value_scale, dtype)
        self._library.append(_dense(k), _dense(v), pages, lengths)

    def _wrapper(self, plan: FlashInferPlan, form: Form) -> Any:
        """The library's wrapper, planned for the plan."""
        lengths = plan.lengths
        held = plan.wrappers.get(form) if plan.fixed else self._shared.get((plan.group, lengths.decoding, form))
        if held is None:
            held = Wrapped(self._library.make_wrapper(self._get_workspace(), lengths, fixed=plan.fixed))
            if plan.fixed:
                plan.wrappers[form] = held
            else:
                self._shared[plan.group, lengths.decoding, form] = held
        if held.planned is not lengths:
            self._plan_wrapper(held, form, lengths)
        return held.wrapper

    def _plan_wrapper(self, held: Wrapped, form: Form, lengths: Lengths) -> None:
        if held.copied is not None:
            held.copied.synchronize()  # planning writes to the pinned memory that the last plan is copied from
        self._library.plan(held.wrapper, form, lengths)
        held.planned, held.copied = lengths, self.device.event()

    def _get_workspace(self) -> torch.Tensor:
        """One for all wrappers: their runs follow one another."""
        if self._workspace is None:
            size, where = self._library.workspace_bytes, self.torch_device
            self._workspace = torch.zeros(size, dtype=torch.uint8, device=where)
        return self._workspace


def _make_pages(lengths: Lengths, layer: AttentionLayer, k: torch.Tensor | None) -> Pages:
    """Empty pages for the tokens of a step without a cache."""
    assert k is not None, "without a cache there must be keys"
    shape = (lengths.most_pages, lengths.block_size, layer.kv_heads, layer.head_dim)
    return k.new_zeros(shape), k.new_zeros(shape)


def _encode(x: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """x in units of ``scale``, as 8-bit floats."""
    largest = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-largest, largest).to(dtype)


def _dense(x: torch.Tensor) -> torch.Tensor:
    """``x`` with contiguous heads, which slices of a fused projection have."""
    return x if x.stride(2) == 1 else x.contiguous()
