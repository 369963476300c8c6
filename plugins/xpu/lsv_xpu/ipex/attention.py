"""The attention backend ``ipex-paged``: ``ipex.llm.modules.PagedAttention``, on the GPU and with IPEX's CPU build."""

from __future__ import annotations

import torch

from lsv.kv.spec import KVGroup
from lsv_base.errors import ConfigError
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.attention.cache import PagedCache, make_cache
from lsv_runtime.attention.paged import PagedBackend
from lsv_runtime.attention.step_plan import StepPlan, make_plan, plan_pages
from lsv_runtime.devices.device import Device
from lsv_xpu import libraries
from lsv_xpu.ipex.calls import Ipex

_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_PAGE = 16
"""Tokens of the pages that stand in for a cache when there is none."""


class IpexAttention(PagedBackend):
    """Steps of one token per row use the op for single queries, all others flash attention in chunks.

    If flash attention reads pages with tokens first, it serves both, as single queries would need another layout. IPEX
    ignores the scales of a cache of 8-bit floats, so they are applied to what goes in and what comes out.
    """

    def __init__(self, library: Ipex | None = None) -> None:
        self._library: Ipex = library or libraries.obtain(libraries.IPEX)
        self._kv_heads: dict[tuple[int, int], torch.Tensor] = {}

    def supports(self, layer: AttentionLayer) -> str | None:
        if layer.alibi is not None:
            return "IPEX has no ALiBi for prompts"
        if layer.sinks is not None:
            return "IPEX 2.8 has no sinks"
        return super().supports(layer)

    def make_cache(self, spec: CacheSpec, device: Device) -> PagedCache:
        if spec.dtype not in (*_FLOATS, torch.float8_e5m2):
            raise ConfigError(
                f"attention backend ipex-paged has no KV cache of {spec.dtype}: "
                "choose --kv-cache-dtype auto or, with a model in bfloat16, fp8_e5m2"
            )
        for layer in spec.layers:  # now rather than while a step is captured
            self._heads_of(layer, device.torch_device)
        return make_cache(spec, device.torch_device, heads_first=not self._library.tokens_first)

    def plan(self, batch: BatchLayout, group: KVGroup, into: StepPlan | None = None) -> StepPlan:
        table = self.rows_of(batch, group)
        if not table.shape[1]:
            return plan_pages(batch, _PAGE, self.device)
        return make_plan(batch, table, self.block_size, self.device, group.window, into)

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
            keys, values = (self._pages_for(plan, layer, k.dtype, q.device) for _ in range(2))
        else:
            keys, values = cache.of(layer)
        packed = keys.dtype == torch.float8_e5m2
        if packed and q.dtype != torch.bfloat16:
            raise ConfigError(f"IPEX has a cache of 8-bit floats for bfloat16 only, and the model is in {q.dtype}")
        if k is not None and v is not None:
            self._write(k, v, (keys, values), layer, plan)
        scale = layer.scale * layer.key_scale if packed else layer.scale
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        both = layer.window is not None and layer.soft_cap is not None  # which the op for single queries refuses
        if plan.decoding and not both and not self._library.tokens_first:
            self._decode(out, q, keys, values, scale, layer, plan)
        else:
            self._prefill(out, q, keys, values, scale, layer, plan)
        return out * layer.value_scale if packed and layer.value_scale != 1.0 else out

    def write(self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, cache: PagedCache, plan: StepPlan) -> None:
        self._write(k, v, cache.of(layer), layer, plan)

    def _write(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        into: tuple[torch.Tensor, torch.Tensor],
        layer: AttentionLayer,
        plan: StepPlan,
    ) -> None:
        packed = into[0].dtype == torch.float8_e5m2
        if packed:
            k, v = _divided(k, layer.key_scale), _divided(v, layer.value_scale)
        write = self._library.reshape_and_cache_flash if self._library.tokens_first else self._library.reshape_and_cache
        write(k, v, *into, plan.slots.to(k.device), "fp8_e5m2" if packed else "auto")

    def _decode(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        layer: AttentionLayer,
        plan: StepPlan,
    ) -> None:
        self._library.single_query_cached_kv_attention(
            out,
            q,
            keys,
            values,
            self._heads_of(layer, q.device),
            scale,
            plan.tables,
            plan.context,
            keys.shape[2],
            plan.longest_context,
            None,
            window_size=layer.window or -1,
            softcap=layer.soft_cap or -1.0,
        )

    def _prefill(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        layer: AttentionLayer,
        plan: StepPlan,
    ) -> None:
        reach = -1 if layer.window is None else layer.window - 1
        self._library.flash_attn_varlen_func(
            out,
            q.contiguous() if self._library.tokens_first else q,
            keys,
            values,
            plan.starts.to(q.device),
            plan.ends.to(q.device),
            plan.longest_query,
            plan.longest_context,
            scale,
            layer.causal,
            plan.tables.to(q.device),
            None,
            window_size_left=reach,
            window_size_right=-1 if layer.causal else reach,
            kv_cache_dtype="fp8_e5m2" if keys.dtype == torch.float8_e5m2 else "auto",
            softcap=layer.soft_cap or -1.0,
        )

    def _heads_of(self, layer: AttentionLayer, device: torch.device) -> torch.Tensor:
        """int32 [heads]: the KV head of each query head."""
        shape = (layer.heads, layer.kv_heads)
        if shape not in self._kv_heads:
            heads = torch.arange(layer.kv_heads, dtype=torch.int32, device=device)
            self._kv_heads[shape] = heads.repeat_interleave(layer.heads // layer.kv_heads)
        return self._kv_heads[shape]

    def _pages_for(
        self, plan: StepPlan, layer: AttentionLayer, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Empty pages for the tokens of a step without a cache."""
        shape = (_PAGE, layer.kv_heads) if self._library.tokens_first else (layer.kv_heads, _PAGE)
        return torch.zeros(plan.tables.numel(), *shape, layer.head_dim, dtype=dtype, device=device)


def _divided(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x if scale == 1.0 else x / scale
