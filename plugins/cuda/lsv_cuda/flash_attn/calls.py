"""The calls into flash-attn 2 and 3. Signatures are those of 2.8.4, ``flash_attn/flash_attn_interface.py``, and of the
release 3 beside it, ``hopper/flash_attn_interface.py``.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any

import torch

from lsv_runtime.attention import AttentionLayer
from lsv_runtime.attention.cache import Pages
from lsv_runtime.attention.step_plan import StepPlan

_LARGEST_HEAD = 256


class FlashAttn(ABC):
    """What both releases agree on: q [T, heads, dim] and K, V of kv_heads are float16 or bfloat16, dense in their last
    axis; a row's queries are its last tokens.
    """

    package: str
    block_size: int
    """What divides the tokens of a page."""

    def why_not(self, layer: AttentionLayer) -> str | None:
        """None, or what it has no kernels for."""
        if layer.head_dim > _LARGEST_HEAD or layer.head_dim % 8:
            return f"head size {layer.head_dim} is not a multiple of 8 up to {_LARGEST_HEAD}"
        if layer.sinks is not None:
            return f"{self.package} has no sinks"
        return None

    @abstractmethod
    def attend_pages(self, q: torch.Tensor, pages: Pages, layer: AttentionLayer, plan: StepPlan) -> torch.Tensor:
        """Over pages [pages, block, kv_heads, dim]; as q."""

    @abstractmethod
    def attend_tokens(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, plan: StepPlan
    ) -> torch.Tensor:
        """Over k and v [T, kv_heads, dim], the tokens of each row; as q."""


class FlashAttn2(FlashAttn):
    """``hip`` is the build for AMD's GPUs."""

    package = "flash-attn 2"
    block_size = 256

    def __init__(self, module: Any = None, *, hip: bool | None = None) -> None:
        """``module`` stands for ``flash_attn``; without one it is the installed package.

        Raises ``ImportError`` where that would compute with kernels in Triton instead of its own.
        """
        if module is None:
            interface = importlib.import_module("flash_attn.flash_attn_interface")
            if getattr(interface, "USE_TRITON_ROCM", False):
                raise ImportError("flash-attn is built without its own kernels for AMD's GPUs, and would take Triton's")
            module = importlib.import_module("flash_attn")
        self._module, self._hip = module, bool(torch.version.hip) if hip is None else hip

    def why_not(self, layer: AttentionLayer) -> str | None:
        if self._hip and layer.soft_cap is not None:
            return "flash-attn 2 takes a soft cap on AMD's GPUs and ignores it"
        return super().why_not(layer)

    def attend_pages(self, q: torch.Tensor, pages: Pages, layer: AttentionLayer, plan: StepPlan) -> torch.Tensor:
        lengths = (plan.starts, plan.ends, plan.longest_query, plan.longest_context)
        return self._module.flash_attn_varlen_func(q, *pages, *lengths, block_table=plan.tables, **self._options(layer))

    def attend_tokens(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, plan: StepPlan
    ) -> torch.Tensor:
        lengths = (plan.starts, plan.starts, plan.longest_query, plan.longest_query)
        return self._module.flash_attn_varlen_func(q, k, v, *lengths, **self._options(layer))

    def _options(self, layer: AttentionLayer) -> dict[str, Any]:
        """The slopes, where there are some, are float32 [heads]."""
        return {**options(layer), "alibi_slopes": None if layer.alibi is None else layer.alibi.detach().float()}


class FlashAttn3(FlashAttn):
    """Pages may have any number of tokens."""

    package = "flash-attn 3"
    block_size = 1

    def __init__(self, module: Any = None) -> None:
        """``module`` stands for ``flash_attn_interface``; without one it is the installed one."""
        self._module = importlib.import_module("flash_attn_interface") if module is None else module

    def why_not(self, layer: AttentionLayer) -> str | None:
        if layer.alibi is not None:
            return "flash-attn 3 has no ALiBi slopes"
        return super().why_not(layer)

    def attend_pages(self, q: torch.Tensor, pages: Pages, layer: AttentionLayer, plan: StepPlan) -> torch.Tensor:
        """Splits follow from bounds that a captured step keeps: the longest query and the width of the tables."""
        return self._module.flash_attn_with_kvcache(
            q,
            *pages,
            cache_seqlens=plan.context,
            page_table=plan.tables,
            cu_seqlens_q=plan.starts,
            max_seqlen_q=plan.longest_query,
            **options(layer),
        )

    def attend_tokens(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, plan: StepPlan
    ) -> torch.Tensor:
        lengths = (plan.starts, plan.starts, plan.longest_query, plan.longest_query)
        return self._module.flash_attn_varlen_func(q, k, v, *lengths, **options(layer))


def options(layer: AttentionLayer) -> dict[str, Any]:
    """What both releases call alike. Windows count tokens to the left and right, -1 for all; 0 is no soft cap."""
    reach = -1 if layer.window is None else layer.window - 1
    return {
        "softmax_scale": layer.scale,
        "causal": layer.causal,
        "window_size": (reach, 0 if layer.causal and reach >= 0 else reach),
        "softcap": layer.soft_cap or 0.0,
    }
