"""Strict fakes of flash-attn 2 and 3: what the adapters call is held against the packages' own signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch

from lsv_cuda.flash_attn.calls import FlashAttn2, FlashAttn3
from lsv_runtime.emulation.fakes import StrictFake
from lsv_runtime.emulation.vendors.attention import attend_row, read_pages
from lsv_runtime.emulation.vendors.checks import check_devices, check_tensor, numbers, require
from lsv_runtime.emulation.vendors.signatures import Package, fake_functions, read_package, signature

PACKAGE_2 = read_package(Path(__file__).with_name("flash_attn.json"), Package)
PACKAGE_3 = read_package(Path(__file__).with_name("flash_attn_3.json"), Package)
_HALVES = (torch.float16, torch.bfloat16)


class FakeFlashAttn2(FlashAttn2, StrictFake):
    """``hip`` answers as the build for AMD's GPUs."""

    library = "flash-attn 2"
    opaque: ClassVar[tuple[str, ...]] = ("attend_pages", "attend_tokens")

    def __init__(self, *, hip: bool = False) -> None:
        StrictFake.__init__(self)
        FlashAttn2.__init__(self, fake_functions(PACKAGE_2, "", _Answers2(self)), hip=hip)


class FakeFlashAttn3(FlashAttn3, StrictFake):
    library = "flash-attn 3"
    opaque: ClassVar[tuple[str, ...]] = ("attend_pages", "attend_tokens")

    def __init__(self) -> None:
        StrictFake.__init__(self)
        FlashAttn3.__init__(self, fake_functions(PACKAGE_3, "", _Answers3(self)))


class _Answers(StrictFake):
    """Each method is a function of a package, with the parameters known here; its calls are those of ``fake``."""

    def __init__(self, fake: StrictFake) -> None:
        super().__init__()
        self.calls, self.log = fake.calls, fake.log

    def _attend(
        self,
        q: torch.Tensor,
        keys: Sequence[tuple[torch.Tensor, torch.Tensor]],
        starts: torch.Tensor,
        longest: tuple[int, int],
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        softcap: float,
        alibi: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """q [T, heads, dim] over each row's own K and V."""
        check_tensor("q", q, _HALVES, [None, None, None], dense=False)
        require(q.stride(-1) == 1, "Input tensor must have contiguous last dimension")
        require(q.shape[2] <= 256 and q.shape[2] % 8 == 0, f"head_size is {q.shape[2]}")
        check_tensor("cu_seqlens_q", starts, [torch.int32], [len(keys) + 1])
        if alibi is not None:
            check_tensor("alibi_slopes", alibi, [torch.float32], [q.shape[1]])
        borders = numbers(starts)
        require(borders[-1] == len(q), f"cu_seqlens_q ends at {borders[-1]}, and there are {len(q)} queries")
        out = torch.empty_like(q)
        for (start, stop), (k, v) in zip(pairwise(borders), keys, strict=True):
            require(stop - start <= longest[0], f"a row has over max_seqlen_q={longest[0]} tokens")
            require(len(k) <= longest[1], f"a row has over max_seqlen_k={longest[1]} keys")
            require(k.dtype == q.dtype and v.dtype == q.dtype, "query, key and value must have the same dtype")
            out[start:stop] = attend_row(
                q[start:stop], k, v, softmax_scale, causal=causal, window=window_size, soft_cap=softcap, alibi=alibi
            ).to(q.dtype)
        return out


def _refuse_others(package: Package, function: str, others: Mapping[str, Any]) -> None:
    """That arguments which the fake does not know have the values that they have by default."""
    parameters = signature(package.functions[function]).parameters
    changed = [name for name, value in others.items() if value != parameters[name].default]
    require(not changed, f"the fake of {function} knows no {', '.join(changed)}")


def _read(pages: torch.Tensor, table: torch.Tensor, lengths: Sequence[int], block: int) -> list[torch.Tensor]:
    """What rows have in pages [pages, block, kv_heads, dim]."""
    check_tensor("pages", pages, _HALVES, [None] * 4, dense=False)
    require(pages.stride(-1) == 1, "the cache must have contiguous last dimension")
    require(pages.shape[1] % block == 0, f"Paged KV cache block size must be divisible by {block}")
    check_tensor("block_table", table, [torch.int32], [len(lengths), None], dense=False)
    require(table.stride(-1) == 1, "block_table must have contiguous last dimension")
    return [read_pages(pages, table[row], length) for row, length in enumerate(lengths)]


def _cut(x: torch.Tensor, borders: Sequence[int]) -> list[torch.Tensor]:
    require(x.stride(-1) == 1, "Input tensor must have contiguous last dimension")
    return [x[start:stop] for start, stop in pairwise(borders)]


class _Answers2(_Answers):
    def flash_attn_varlen_func(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        softcap: float,
        alibi_slopes: torch.Tensor | None,
        block_table: torch.Tensor | None,
        **others: Any,
    ) -> torch.Tensor:
        self.record("flash_attn_varlen_func", tuple(q.shape))
        _refuse_others(PACKAGE_2, "flash_attn_varlen_func", others)
        check_tensor("cu_seqlens_k", cu_seqlens_k, [torch.int32], [len(cu_seqlens_q)])
        check_devices(q=q, k=k, v=v, starts=cu_seqlens_q, ends=cu_seqlens_k, table=block_table, alibi=alibi_slopes)
        ends = numbers(cu_seqlens_k)
        if block_table is None:
            keys = list(zip(_cut(k, ends), _cut(v, ends), strict=True))
        else:
            lengths = [stop - start for start, stop in pairwise(ends)]
            keys = list(zip(*(_read(x, block_table, lengths, 256) for x in (k, v)), strict=True))
        longest = (max_seqlen_q, max_seqlen_k)
        return self._attend(q, keys, cu_seqlens_q, longest, softmax_scale, causal, window_size, softcap, alibi_slopes)


class _Answers3(_Answers):
    def flash_attn_with_kvcache(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        cache_seqlens: torch.Tensor,
        page_table: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        max_seqlen_q: int,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        softcap: float,
        **others: Any,
    ) -> torch.Tensor:
        self.record("flash_attn_with_kvcache", tuple(q.shape))
        _refuse_others(PACKAGE_3, "flash_attn_with_kvcache", others)
        check_tensor("cache_seqlens", cache_seqlens, [torch.int32], [len(cu_seqlens_q) - 1])
        check_devices(q=q, k=k_cache, v=v_cache, starts=cu_seqlens_q, lengths=cache_seqlens, table=page_table)
        lengths = numbers(cache_seqlens)
        keys = list(zip(*(_read(x, page_table, lengths, 1) for x in (k_cache, v_cache)), strict=True))
        longest = (max_seqlen_q, page_table.shape[1] * k_cache.shape[1])
        return self._attend(q, keys, cu_seqlens_q, longest, softmax_scale, causal, window_size, softcap)

    def flash_attn_varlen_func(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        softcap: float,
        **others: Any,
    ) -> torch.Tensor:
        self.record("flash_attn_varlen_func", tuple(q.shape))
        _refuse_others(PACKAGE_3, "flash_attn_varlen_func", others)
        check_tensor("cu_seqlens_k", cu_seqlens_k, [torch.int32], [len(cu_seqlens_q)])
        check_devices(q=q, k=k, v=v, starts=cu_seqlens_q, ends=cu_seqlens_k)
        ends = numbers(cu_seqlens_k)
        keys = list(zip(_cut(k, ends), _cut(v, ends), strict=True))
        longest = (max_seqlen_q, max_seqlen_k)
        return self._attend(q, keys, cu_seqlens_q, longest, softmax_scale, causal, window_size, softcap)
