"""A strict fake of intel-extension-for-pytorch 2.8: what its functions were seen to do, in plain torch.

What ``Ipex`` itself calls is held against the package's own signatures, which ``ipex.json`` has.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import torch
from torch.nn import functional

from lsv_runtime.emulation.fakes import StrictFake
from lsv_runtime.emulation.vendors.attention import attend_row, read_pages, write_pages
from lsv_runtime.emulation.vendors.checks import check_devices, check_tensor, numbers, require
from lsv_runtime.emulation.vendors.signatures import Package, fake_functions, read_package
from lsv_xpu.ipex.calls import Ipex

PACKAGE = read_package(Path(__file__).with_name("ipex.json"), Package)
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_CODES = (torch.float8_e5m2,)


class FakeIpex(Ipex, StrictFake):
    """The adapter over functions that answer as those of the CPU build, or with ``tokens_first`` of the XPU build."""

    library = "intel-extension-for-pytorch"
    opaque: ClassVar[tuple[str, ...]] = (
        "reshape_and_cache",
        "reshape_and_cache_flash",
        "single_query_cached_kv_attention",
        "flash_attn_varlen_func",
    )

    def __init__(self, *, tokens_first: bool = False) -> None:
        StrictFake.__init__(self)
        answers = IpexFunctions(self, tokens_first=tokens_first)
        paged, functions = (fake_functions(PACKAGE, space, answers) for space in ("PagedAttention", "functional"))
        Ipex.__init__(self, paged, functions, tokens_first=tokens_first)


class IpexFunctions(StrictFake):
    """Each method is a function, with its parameters; its calls are those of ``fake``."""

    def __init__(self, fake: StrictFake, *, tokens_first: bool) -> None:
        super().__init__()
        self.calls, self.log, self._tokens_first = fake.calls, fake.log, tokens_first

    def reshape_and_cache(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        **scales: float,
    ) -> None:
        _check_unread(**scales)
        self.record("reshape_and_cache", tuple(key.shape))
        self._write(key, value, key_cache.transpose(1, 2), value_cache.transpose(1, 2), slot_mapping, kv_cache_dtype)

    def reshape_and_cache_flash(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        **scales: float,
    ) -> None:
        _check_unread(**scales)
        self.record("reshape_and_cache_flash", tuple(key.shape))
        require(self._tokens_first, "the CPU build has no layout of its own for flash attention")
        self._write(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype)

    def _write(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slots: torch.Tensor,
        kv_cache_dtype: str,
    ) -> None:
        require(kv_cache_dtype in ("auto", "fp8_e5m2"), f"unsupported kv_cache_dtype {kv_cache_dtype}")
        check_tensor("slot_mapping", slots, [torch.int64, torch.int32], [len(key)])
        check_devices(key=key, value=value, key_cache=key_cache, value_cache=value_cache, slot_mapping=slots)
        for name, x, cache in (("key", key, key_cache), ("value", value, value_cache)):
            check_tensor(name, x, _FLOATS, [None, *cache.shape[2:]], dense=False)
            self._check_codes(x.dtype, cache, kv_cache_dtype)
            write_pages(x, cache, slots)

    def single_query_cached_kv_attention(
        self,
        output: torch.Tensor,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        head_mapping: torch.Tensor,
        scale: float,
        block_tables: torch.Tensor,
        context_lens: torch.Tensor,
        block_size: int,
        max_context_len: int,
        alibi_slopes: torch.Tensor | None,
        window_size: int,
        softcap: float,
        **scales: float,
    ) -> None:
        _check_unread(**scales)
        out, tables, lengths, longest, alibi = output, block_tables, context_lens, max_context_len, alibi_slopes
        self.record("single_query_cached_kv_attention", tuple(query.shape))
        require(not self._tokens_first, "single queries read caches with heads first")
        require(not (window_size > 0 and softcap > 0), "a window and a soft cap together are refused")
        rows, heads, dim = query.shape
        check_tensor("query", query, _FLOATS, [rows, heads, dim], dense=False)
        check_tensor("output", out, [query.dtype], [rows, heads, dim])
        for cache in (key_cache, value_cache):
            check_tensor("cache", cache, [query.dtype, *_CODES], [None, None, block_size, dim], dense=False)
        kv_heads = key_cache.shape[1]
        check_tensor("head_mapping", head_mapping, [torch.int32], [heads])
        require(
            numbers(head_mapping) == [head // (heads // kv_heads) for head in range(heads)],
            "head_mapping is not that of the cache's KV heads",
        )
        check_tensor("block_tables", tables, [torch.int32], [rows, None])
        check_tensor("context_lens", lengths, [torch.int32], [rows])
        check_devices(query=query, output=out, cache=key_cache, block_tables=tables, context_lens=lengths)
        window = (window_size - 1 if window_size > 0 else -1, -1)
        for row, length in enumerate(numbers(lengths)):
            require(length <= longest, f"row {row} has over max_context_len={longest} tokens")
            keys, values = (read_pages(x.transpose(1, 2), tables[row], length) for x in (key_cache, value_cache))
            out[row] = attend_row(
                query[row : row + 1], keys, values, scale, causal=True, window=window, soft_cap=softcap, alibi=alibi
            )[0].to(out.dtype)

    def flash_attn_varlen_func(
        self,
        output: torch.Tensor,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_kv: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_kv: int,
        scale: float,
        is_cusal: bool,
        block_tables: torch.Tensor,
        alibi_slopes: torch.Tensor | None,
        window_size_left: int,
        window_size_right: int,
        kv_cache_dtype: str,
        softcap: float,
        **scales: float,
    ) -> None:
        _check_unread(**scales)
        out, tables, alibi, longest_query, longest_context = (
            output, block_tables, alibi_slopes, max_seqlen_q, max_seqlen_kv
        )  # fmt: skip
        self.record("flash_attn_varlen_func", tuple(query.shape))
        require(alibi is None, "alibi_slopes is not supported for flash_attn_varlen yet")
        if not self._tokens_first:
            key_cache, value_cache = key_cache.transpose(1, 2), value_cache.transpose(1, 2)
        check_tensor("query", query, _FLOATS, [None, None, key_cache.shape[-1]], dense=self._tokens_first)
        check_tensor("output", out, [query.dtype], query.shape)
        self._check_codes(query.dtype, key_cache, kv_cache_dtype)
        rows = len(cu_seqlens_q) - 1
        for name, borders in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_kv", cu_seqlens_kv)):
            check_tensor(name, borders, [torch.int32], [rows + 1])
        check_tensor("block_tables", tables, [torch.int32], [rows, None])
        check_devices(query=query, output=out, cache=key_cache, block_tables=tables, cu_seqlens_q=cu_seqlens_q)
        lengths = [last - first for first, last in pairwise(numbers(cu_seqlens_kv))]
        for row, (start, stop) in enumerate(pairwise(numbers(cu_seqlens_q))):
            require(stop - start <= longest_query, f"row {row} has over max_seqlen_q={longest_query} tokens")
            require(lengths[row] <= longest_context, f"row {row} has over max_seqlen_kv={longest_context} tokens")
            keys, values = (read_pages(x, tables[row], lengths[row]) for x in (key_cache, value_cache))
            out[start:stop] = attend_row(
                query[start:stop],
                keys,
                values,
                scale,
                causal=is_cusal,
                window=(window_size_left, window_size_right),
                soft_cap=softcap,
            ).to(out.dtype)

    def _check_codes(self, dtype: torch.dtype, cache: torch.Tensor, kv_cache_dtype: str) -> None:
        if kv_cache_dtype == "auto":
            require(cache.dtype == dtype, f"a cache of {cache.dtype} for {dtype}")
        else:
            require(cache.dtype in _CODES, "only float8_e5m2 supported")
            require(dtype == torch.bfloat16, f"a cache of 8-bit floats for {dtype}: there is one for bfloat16")

    def rms_norm(self, hidden_states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        x = hidden_states
        self.record("rms_norm", tuple(x.shape))
        check_tensor("weight", weight, [x.dtype], [x.shape[-1]])
        check_devices(x=x, weight=weight)
        return functional.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)

    def silu_mul(self, x: torch.Tensor, y: torch.Tensor, out: None) -> torch.Tensor:
        self.record("silu_mul", tuple(x.shape))
        require(out is None, "the fake makes its results")
        check_tensor("y", y, [x.dtype], x.shape, dense=False)
        return functional.silu(x) * y

    def gelu_mul(self, x: torch.Tensor, y: torch.Tensor, out: None, approximate: str) -> torch.Tensor:
        self.record("gelu_mul", tuple(x.shape))
        require(out is None, "the fake makes its results")
        check_tensor("y", y, [x.dtype], x.shape, dense=False)
        return functional.gelu(x, approximate=approximate) * y

    def rotary_embedding(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        sin: torch.Tensor,
        cos: torch.Tensor,
        rotary_dim: int,
        rotary_half: bool,
        position_ids: None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.record("rotary_embedding", tuple(query.shape))
        tokens, _, dim = query.shape
        require(rotary_dim == dim, "only whole heads turn")
        require(rotary_half and position_ids is None, "the fake turns halves, by angles of each token")
        for name, part in (("sin", sin), ("cos", cos)):
            check_tensor(name, part, [torch.float32], [tokens, dim // 2])
        for name, x in (("query", query), ("key", key)):
            check_tensor(name, x, _FLOATS, [tokens, None, dim])
            a, b = x.float().chunk(2, dim=-1)
            x.copy_(torch.cat((a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]), dim=-1))
        return query, key


def _check_unread(k_scale: float, v_scale: float) -> None:
    require(k_scale == v_scale == 1.0, "2.8.0 reads no scales")
