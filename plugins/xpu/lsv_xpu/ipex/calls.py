"""The calls into intel-extension-for-pytorch, checked by version before it is imported (``libraries.missing_ipex``).

Signatures are those of 2.8.0, ``llm/modules/mha_fusion.py`` and ``llm/functional/fusions.py``; what differs in
2.10.10+xpu is said. Arguments behind the last common one go by name, as their order is not the same in both.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch


class Ipex:
    """Every method is one function of IPEX. Tensors lie on the CPU with its CPU build, on the GPU with the other.

    ``tokens_first`` says that its flash attention reads caches [pages, block, kv_heads, dim], as the XPU build's does;
    the CPU build reads [pages, kv_heads, block, dim].
    """

    def __init__(self, paged: Any = None, functional: Any = None, *, tokens_first: bool = False) -> None:
        """``paged`` stands for ``PagedAttention`` and ``functional`` for the module of functions; without them they are
        the installed ones.
        """
        if paged is None:
            ipex = importlib.import_module("intel_extension_for_pytorch")
            paged, functional = ipex.llm.modules.PagedAttention, ipex.llm.functional
            tokens_first = "xpu" in ipex.__version__
        self._paged, self._functional, self.tokens_first = paged, functional, tokens_first

    def reshape_and_cache(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slots: torch.Tensor,
        kv_cache_dtype: str,
    ) -> None:
        """Writes key and value [T, kv_heads, dim] to places slots int64 [T] (page * block + place) of the caches
        [pages, kv_heads, block, dim]. ``kv_cache_dtype``: auto, or fp8_e5m2 from bfloat16. 2.8.0 reads no scales.
        """
        self._paged.reshape_and_cache(key, value, key_cache, value_cache, slots, kv_cache_dtype)

    def reshape_and_cache_flash(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slots: torch.Tensor,
        kv_cache_dtype: str,
    ) -> None:
        """The same to caches [pages, block, kv_heads, dim]. With the CPU build it is ``reshape_and_cache``, layout and
        all.
        """
        self._paged.reshape_and_cache_flash(key, value, key_cache, value_cache, slots, kv_cache_dtype)

    def single_query_cached_kv_attention(
        self,
        out: torch.Tensor,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        head_mapping: torch.Tensor,
        scale: float,
        tables: torch.Tensor,
        lengths: torch.Tensor,
        block_size: int,
        longest: int,
        alibi: torch.Tensor | None,
        *,
        window_size: int,
        softcap: float,
    ) -> None:
        """query [rows, heads, dim], the last token of each row, over caches [pages, kv_heads, block, dim] -> out.

        head_mapping int32 [heads]: the KV head of each; tables int32 [rows, blocks]; lengths int32 [rows];
        alibi float32 [heads]. ``window_size`` counts the tokens seen, itself included, -1 for all; softcap -1 for none;
        2.8.0 refuses both together.
        """
        self._paged.single_query_cached_kv_attention(
            out,
            query,
            key_cache,
            value_cache,
            head_mapping,
            scale,
            tables,
            lengths,
            block_size,
            longest,
            alibi,
            window_size=window_size,
            softcap=softcap,
        )

    def flash_attn_varlen_func(
        self,
        out: torch.Tensor,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_kv: torch.Tensor,
        longest_query: int,
        longest_context: int,
        scale: float,
        is_cusal: bool,
        tables: torch.Tensor,
        alibi: torch.Tensor | None,
        *,
        window_size_left: int,
        window_size_right: int,
        kv_cache_dtype: str,
        softcap: float,
    ) -> None:
        """query [T, heads, dim], the last tokens of each row, over the caches -> out. Lengths, added up, and tables are
        int32. Windows count tokens to the left and right, -1 for all; the CPU build refuses ALiBi. (``is_cusal`` is
        IPEX's spelling.)
        """
        self._paged.flash_attn_varlen_func(
            out,
            query,
            key_cache,
            value_cache,
            cu_seqlens_q,
            cu_seqlens_kv,
            longest_query,
            longest_context,
            scale,
            is_cusal,
            tables,
            alibi,
            window_size_left=window_size_left,
            window_size_right=window_size_right,
            kv_cache_dtype=kv_cache_dtype,
            softcap=softcap,
        )

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self._functional.rms_norm(x, weight, eps)  # type: ignore[no-any-return]

    def silu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up. (``silu_and_mul`` over both in one tensor is there with the XPU build only.)"""
        return self._functional.silu_mul(gate, up)  # type: ignore[no-any-return]

    def gelu_mul(self, gate: torch.Tensor, up: torch.Tensor, approximate: str) -> torch.Tensor:
        return self._functional.gelu_mul(gate, up, None, approximate)  # type: ignore[no-any-return]

    def rotary_embedding(
        self, query: torch.Tensor, key: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, rotary_dim: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """query and key [T, heads, dim] turned by halves, in place where they are dense, and given back; sin and cos
        [T, dim / 2] of each token, in float32. All features turn.
        """
        return self._functional.rotary_embedding(  # type: ignore[no-any-return]
            query, key, sin, cos, rotary_dim, True
        )
