"""The attention backend ``xpu-flash``: the flash attention of vllm_xpu_kernels over a paged cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lsv.kv.spec import KVGroup
from lsv_base.errors import ConfigError
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.attention.cache import PagedCache, Pages, make_cache
from lsv_runtime.attention.paged import PagedBackend
from lsv_runtime.attention.step_plan import StepPlan, make_plan, plan_pages
from lsv_runtime.devices.device import Device
from lsv_xpu import libraries
from lsv_xpu.vllm.calls import VllmKernels

HEAD_DIMS = (64, 96, 128, 192, 256, 512)
"""Head sizes that there are kernels for; with which features, the package is asked."""
BLOCK_SIZES = (64, 128)
"""Tokens of a page. Smaller pages take kernels that the published packages lack for most heads and features; these
two take the same ones.
"""
CODES: Mapping[torch.dtype, str] = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}
"""The op's names for 8-bit caches."""
_FLOATS = (torch.float16, torch.bfloat16)


class FlashAttention(PagedBackend):
    """One call per layer for any mix of rows. Not row-invariant: the library chooses its splits by the longest row.

    A step without a cache gets pages of its own, as kernels for pages are those that are compiled with every feature.
    """

    def __init__(self, library: VllmKernels | None = None) -> None:
        self._library: VllmKernels = library or libraries.obtain(libraries.VLLM)
        self._scales: dict[float, torch.Tensor] = {}
        self._asked: dict[tuple[int, int, int, bool, bool, bool], str | None] = {}

    def supports(self, layer: AttentionLayer) -> str | None:
        if layer.head_dim not in HEAD_DIMS:
            return f"head size {layer.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}"
        if layer.soft_cap is not None:
            return "vllm_xpu_kernels takes a soft cap and ignores it"
        if layer.alibi is not None:
            return "vllm_xpu_kernels takes ALiBi slopes and ignores them"
        return super().supports(layer) or self._why_not_compiled(layer)

    def _why_not_compiled(self, layer: AttentionLayer) -> str | None:
        window, sinks = layer.window is not None, layer.sinks is not None
        asked = (layer.heads, layer.kv_heads, layer.head_dim, layer.causal, window, sinks)
        if asked not in self._asked:
            self._asked[asked] = self._library.why_not_attention(
                *asked[:3], BLOCK_SIZES[0], causal=layer.causal, window=window, sinks=sinks
            )
        why = self._asked[asked]
        if why is None:
            return None
        features = "".join(name for name, has in ((", a window", window), (", sinks", sinks)) if has)
        causal = "" if layer.causal else ", not causal"
        kind = f"{layer.heads} heads over {layer.kv_heads} of {layer.head_dim}{features}{causal}"
        return f"vllm_xpu_kernels for {kind}: {why}"

    def make_cache(self, spec: CacheSpec, device: Device) -> PagedCache:
        if spec.dtype not in (*_FLOATS, *CODES):
            raise ConfigError(
                f"attention backend xpu-flash has no KV cache of {spec.dtype}: "
                "choose float16 or bfloat16, with a cache of the same or of 8-bit floats, or another backend"
            )
        for layer in spec.layers:  # now rather than while a step is captured
            self._scale(layer.key_scale, device.torch_device), self._scale(layer.value_scale, device.torch_device)
        return make_cache(spec, device.torch_device)

    def plan(self, batch: BatchLayout, group: KVGroup, into: StepPlan | None = None) -> StepPlan:
        table = self.rows_of(batch, group)
        if not table.shape[1]:
            return plan_pages(batch, BLOCK_SIZES[0], self.device)
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
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        reach = -1 if layer.window is None else layer.window - 1
        shared: dict[str, Any] = {
            "out": out,
            "cu_seqlens_q": plan.starts.to(q.device),
            "max_seqlen_q": plan.longest_query,
            "max_seqlen_k": plan.longest_context,
            "softmax_scale": layer.scale,
            "causal": layer.causal,
            "window_size": (reach, 0 if layer.causal and reach >= 0 else reach),
            "s_aux": None if layer.sinks is None else layer.sinks.detach().to(q.dtype),
        }
        pages = self._pages_for(plan, layer, k) if cache is None else cache.of(layer)
        if k is not None and v is not None:
            self._write(k, v, pages, layer, plan)
        descales: dict[str, torch.Tensor] = {}
        if pages[0].dtype in CODES:
            shape = (plan.rows, layer.kv_heads)
            descales = {
                "k_descale": self._scale(layer.key_scale, q.device).expand(shape),
                "v_descale": self._scale(layer.value_scale, q.device).expand(shape),
            }
        context, tables = plan.context.to(q.device), plan.tables.to(q.device)
        self._library.flash_attn_varlen_func(q, *pages, seqused_k=context, block_table=tables, **shared, **descales)
        return out

    def write(self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, cache: PagedCache, plan: StepPlan) -> None:
        self._write(k, v, cache.of(layer), layer, plan)

    def _write(self, k: torch.Tensor, v: torch.Tensor, pages: Pages, layer: AttentionLayer, plan: StepPlan) -> None:
        self._library.reshape_and_cache_flash(
            _dense_heads(k),
            _dense_heads(v),
            *pages,
            plan.slots.to(k.device),
            CODES.get(pages[0].dtype, "auto"),
            self._scale(layer.key_scale, k.device),
            self._scale(layer.value_scale, k.device),
        )

    def _pages_for(self, plan: StepPlan, layer: AttentionLayer, k: torch.Tensor | None) -> Pages:
        """Empty pages for the tokens of a step without a cache."""
        assert k is not None, "without a cache there must be keys"
        shape = (plan.tables.numel(), BLOCK_SIZES[0], layer.kv_heads, layer.head_dim)
        return k.new_zeros(shape), k.new_zeros(shape)

    def _scale(self, scale: float, device: torch.device) -> torch.Tensor:
        """float32 [1] on the device, in a storage of its own."""
        if scale not in self._scales:
            self._scales[scale] = torch.tensor([scale], dtype=torch.float32, device=device)
        return self._scales[scale]


def _dense_heads(x: torch.Tensor) -> torch.Tensor:
    """``x`` [T, heads, dim] with the heads of each token contiguous, as they are in a slice of a fused projection."""
    _, head, feature = x.stride()
    return x if feature == 1 and head == x.shape[2] else x.contiguous()
