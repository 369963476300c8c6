"""The attention backends ``flash-attn`` and ``flash-attn-3`` over a paged cache."""

from __future__ import annotations

import torch

from lsv.kv.spec import KVGroup
from lsv_base.errors import ConfigError
from lsv_cuda import libraries
from lsv_cuda.flash_attn.calls import FlashAttn
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.attention.cache import PagedCache, make_cache
from lsv_runtime.attention.paged import PagedBackend
from lsv_runtime.attention.step_plan import StepPlan, make_plan
from lsv_runtime.devices.device import Device

_FLOATS = (torch.float16, torch.bfloat16)


class FlashAttention(PagedBackend):
    """One call a layer for any mix of rows, and two copies into the cache before it; every step can be captured.

    Not row-invariant: the library chooses its splits by the whole batch.
    """

    def __init__(self, library: FlashAttn) -> None:
        self._library = library

    def supports(self, layer: AttentionLayer) -> str | None:
        return self._library.why_not(layer) or super().supports(layer)

    def make_cache(self, spec: CacheSpec, device: Device) -> PagedCache:
        if spec.dtype not in _FLOATS:
            raise ConfigError(
                f"{self._library.package} has no KV cache of {spec.dtype} beside such queries: choose float16 or "
                "bfloat16 for both, or another attention backend",
                param="kv_cache_dtype",
            )
        if spec.block_size % self._library.block_size:
            raise ConfigError(
                f"{self._library.package} takes blocks of a multiple of {self._library.block_size} tokens, not of "
                f"{spec.block_size}",
                param="block_size",
            )
        return make_cache(spec, device.torch_device)

    def plan(self, batch: BatchLayout, group: KVGroup, into: StepPlan | None = None) -> StepPlan:
        return make_plan(batch, self.rows_of(batch, group), self.block_size, self.device, group.window, into)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: AttentionLayer,
        cache: PagedCache | None,
        plan: StepPlan,
    ) -> torch.Tensor:
        if cache is None:
            assert k is not None, "without a cache there must be keys"
            assert v is not None, "without a cache there must be values"
            return self._library.attend_tokens(q, k, v, layer, plan)
        if k is not None and v is not None:
            self.write(k, v, layer, cache, plan)
        return self._library.attend_pages(q, cache.of(layer), layer, plan)

    def write(self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, cache: PagedCache, plan: StepPlan) -> None:
        for x, pages in zip((k, v), cache.of(layer), strict=True):
            _write(x, pages, plan.slots)


class FlashAttention2(FlashAttention):
    def __init__(self, library: FlashAttn | None = None) -> None:
        super().__init__(library or libraries.obtain(libraries.FLASH_ATTN_2))


class FlashAttention3(FlashAttention):
    def __init__(self, library: FlashAttn | None = None) -> None:
        super().__init__(library or libraries.obtain(libraries.FLASH_ATTN_3))


def _write(x: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    """x [T, kv_heads, dim] to the places ``slots`` of pages [pages, block, kv_heads, dim]."""
    if pages.is_contiguous():
        pages.flatten(0, 1).index_copy_(0, slots, x)
    else:
        pages[slots // pages.shape[1], slots % pages.shape[1]] = x
