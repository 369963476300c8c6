"""The attention backend ``xpu-flash``: the flash attention of vllm_xpu_kernels over a paged cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lsv.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv.attention.cache import PagedCache, make_cache
from lsv.attention.paged import PagedBackend
from lsv.errors import ConfigError
from lsv.kv.spec import KVGroup
from lsv.platform import Device
from lsv_xpu import libraries
from lsv_xpu.step_plan import StepPlan, make_plan
from lsv_xpu.vllm.calls import VllmKernels

HEAD_DIMS = (64, 96, 128, 192, 256, 512)
"""Head sizes that kernels are compiled for; others fall back to plain torch inside the library, or fail."""
CODES: Mapping[torch.dtype, str] = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}
"""The op's names for 8-bit caches."""
_FLOATS = (torch.float16, torch.bfloat16)


class FlashAttention(PagedBackend):
    """One call per layer for any mix of rows. Not row-invariant: the library chooses its splits by the longest row."""

    def __init__(self, library: VllmKernels | None = None) -> None:
        self._library: VllmKernels = library or libraries.obtain(libraries.VLLM)
        self._scales: dict[float, torch.Tensor] = {}

    def supports(self, layer: AttentionLayer) -> str | None:
        if layer.head_dim not in HEAD_DIMS:
            return f"head size {layer.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}"
        if layer.soft_cap is not None:
            return "vllm_xpu_kernels takes a soft cap and ignores it"
        if layer.alibi is not None:
            return "vllm_xpu_kernels takes ALiBi slopes and ignores them"
        return super().supports(layer)

    def make_cache(self, spec: CacheSpec, device: Device) -> PagedCache:
        if spec.dtype not in (*_FLOATS, *CODES):
            raise ConfigError(
                f"attention backend xpu-flash has no KV cache of {spec.dtype}: "
                "choose float16 or bfloat16, with a cache of the same or of 8-bit floats, or another backend"
            )
        for layer in spec.layers:  # now rather than while a step is captured
            self._scale(layer.key_scale), self._scale(layer.value_scale)
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
        if cache is None:
            assert k is not None, "without a cache there must be keys"
            assert v is not None, "without a cache there must be values"
            self._library.flash_attn_varlen_func(q, k, v, cu_seqlens_k=shared["cu_seqlens_q"], **shared)
            return out
        keys, values = cache.of(layer)
        if k is not None and v is not None:
            self.write(k, v, layer, cache, plan)
        descales: dict[str, torch.Tensor] = {}
        if cache.dtype in CODES:
            shape = (plan.rows, layer.kv_heads)
            descales = {
                "k_descale": self._scale(layer.key_scale).expand(shape),
                "v_descale": self._scale(layer.value_scale).expand(shape),
            }
        self._library.flash_attn_varlen_func(
            q, keys, values, seqused_k=plan.context, block_table=plan.tables, **shared, **descales
        )
        return out

    def write(self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, cache: PagedCache, plan: StepPlan) -> None:
        self._library.reshape_and_cache_flash(
            _dense_heads(k),
            _dense_heads(v),
            *cache.of(layer),
            plan.slots,
            CODES.get(cache.dtype, "auto"),
            self._scale(layer.key_scale),
            self._scale(layer.value_scale),
        )

    def _scale(self, scale: float) -> torch.Tensor:
        """float32 [1] on the device, in a storage of its own."""
        if scale not in self._scales:
            self._scales[scale] = torch.tensor([scale], dtype=torch.float32, device=self.torch_device)
        return self._scales[scale]


def _dense_heads(x: torch.Tensor) -> torch.Tensor:
    """``x`` [T, heads, dim] with the heads of each token contiguous, as they are in a slice of a fused projection."""
    _, head, feature = x.stride()
    return x if feature == 1 and head == x.shape[2] else x.contiguous()
