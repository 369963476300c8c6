"""The attention of vllm_xpu_kernels in plain torch, and the configurations that its package holds kernels for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from lsv_runtime.emulation.fakes import StrictFake
from lsv_runtime.emulation.vendors.attention import attend_row, read_pages
from lsv_runtime.emulation.vendors.checks import check_devices, check_tensor, numbers, require
from lsv_runtime.emulation.vendors.signatures import Package, bind_function, read_package, signature


class VllmPackage(Package, frozen=True, kw_only=True):
    """With the configurations that its attention is compiled for."""

    prefill: tuple[str, ...]
    """Of attention over several queries a row: head size; t or f for paged, causal, local, sink, lse."""
    decode: tuple[str, ...]
    """Of attention over one: query heads to a KV head, head size, tokens of a page; causal, local, sink."""


PACKAGE = read_package(Path(__file__).with_name("vllm_xpu_kernels.json"), VllmPackage)
CODES = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_HALVES = (torch.float16, torch.bfloat16)


class VllmFlash(StrictFake):
    """Stands for the module ``flash_attn_interface``; its calls are those of ``fake``."""

    computes = True

    def __init__(self, fake: StrictFake) -> None:
        super().__init__()
        self.calls, self.log = fake.calls, fake.log

    def flash_attn_varlen_func(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        given = bind_function(PACKAGE, "flash_attn_varlen_func", args, kwargs)
        known = {name: given.pop(name) for name in _KNOWN}
        unknown = {name: value for name, value in given.items() if value != _UNUSED[name]}
        require(not unknown, f"the fake knows no {', '.join(unknown)}")
        return self._attend(**known)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        out: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        cu_seqlens_k: torch.Tensor | None = None,
        seqused_k: torch.Tensor | None = None,
        block_table: torch.Tensor | None = None,
        k_descale: torch.Tensor | None = None,
        v_descale: torch.Tensor | None = None,
        s_aux: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.record("flash_attn_varlen_func", tuple(q.shape))
        require((cu_seqlens_k is None) != (seqused_k is None), "give exactly one of cu_seqlens_k and seqused_k")
        require((block_table is None) == (seqused_k is None), "a paged cache goes with seqused_k, and only with it")
        rows, heads = len(cu_seqlens_q) - 1, k.shape[-2]
        check_tensor("q", q, _HALVES, [None, None, k.shape[-1]], dense=False)
        require(q.shape[1] % heads == 0, f"{q.shape[1]} query heads over {heads} KV heads")
        require((window_size[0] < 0) == (window_size[1] < 0), f"a window of {window_size} is one in one direction only")
        check_tensor("out", out, [q.dtype], q.shape, dense=False)
        check_tensor("cu_seqlens_q", cu_seqlens_q, [torch.int32], [rows + 1])
        for name, x in (("q", q), ("k", k), ("v", v)):
            aligned = all(stride * x.element_size() % 16 == 0 for stride in x.stride()[:-1])
            require(x.stride(-1) == 1 and aligned, f"{name} has strides {x.stride()}: 16 bytes must divide all but 1")
        if s_aux is not None:
            check_tensor("s_aux", s_aux, [q.dtype], [q.shape[1]])
        lengths = seqused_k if seqused_k is not None else cu_seqlens_k
        assert lengths is not None
        check_tensor("lengths of k", lengths, [torch.int32], [rows if seqused_k is not None else rows + 1])
        scales = _check_cache(q, k, v, block_table, k_descale, v_descale)
        check_devices(q=q, k=k, v=v, out=out, cu_seqlens_q=cu_seqlens_q, lengths=lengths, block_table=block_table)
        missing = why_not_compiled(q, k, block_table, max_seqlen_q, causal, window_size[0] >= 0, s_aux is not None)
        require(missing is None, f"{missing} kernel not compiled: it would run in plain torch, over copies on the host")
        borders, lengths_of = numbers(cu_seqlens_q), numbers(lengths)
        require(borders[-1] == len(q), f"cu_seqlens_q ends at {borders[-1]}, and there are {len(q)} queries")
        for row, (start, stop) in enumerate(pairwise(borders)):
            require(stop - start <= max_seqlen_q, f"row {row} has over max_seqlen_q={max_seqlen_q} tokens")
            if block_table is not None:
                length = lengths_of[row]
                keys, values = (read_pages(x, block_table[row], length).float() for x in (k, v))
            else:
                first, last = lengths_of[row : row + 2]
                length, keys, values = last - first, k[first:last].float(), v[first:last].float()
            require(length <= max_seqlen_k, f"row {row} has over max_seqlen_k={max_seqlen_k} keys")
            out[start:stop] = attend_row(
                q[start:stop],
                keys * scales[0],
                values * scales[1],
                softmax_scale,
                causal=causal,
                window=window_size,
                sinks=s_aux,
            ).to(q.dtype)
        return out


def why_not_compiled(
    q: torch.Tensor,
    k: torch.Tensor,
    block_table: torch.Tensor | None,
    longest: int,
    causal: bool,
    local: bool,
    sink: bool,
) -> str | None:
    """None, or which of its kernels the package lacks for a call; rows of one query and others have one each."""
    head, paged = q.shape[-1], block_table is not None
    flags = (paged, causal and not local, local, sink, False)
    if (longest > 1 or not paged) and f"{head},{_letters(*flags)}" not in PACKAGE.prefill:
        return "Chunk prefill"
    page = 64 if k.shape[1] % 64 == 0 else k.shape[1]
    ratio = 8 if q.shape[1] <= 8 * k.shape[-2] else 16
    if paged and f"{ratio},{head},{page},{_letters(False, local, sink)}" not in PACKAGE.decode:
        return "Paged decode"
    return None


def _letters(*flags: bool) -> str:
    return "".join("t" if flag else "f" for flag in flags)


def _check_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_table: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
) -> tuple[float, float]:
    """The units of K and V."""
    require(k.dtype == v.dtype and k.shape == v.shape, "k and v differ in dtype or shape")
    if block_table is None:
        check_tensor("k", k, [q.dtype], [None] * 3, dense=False)
        return 1.0, 1.0
    check_tensor("block_table", block_table, [torch.int32], [None, None])
    check_tensor("k", k, [q.dtype, *CODES.values()], [None] * 4, dense=False)
    require(k.shape[1] in (16, 32) or k.shape[1] % 64 == 0, f"no kernel for blocks of {k.shape[1]}")
    for x in (k, v):
        require(x.stride(0) % x.stride(1) == 0, "a page's stride is not a multiple of a token's")
    if k.dtype == q.dtype:
        require(k_descale is None and v_descale is None, "a cache of floats has no descales")
        return 1.0, 1.0
    for name, x in (("k_descale", k_descale), ("v_descale", v_descale)):
        require(x is not None, f"a cache of 8-bit floats needs {name}")
        assert x is not None
        check_tensor(name, x, [torch.float32], [len(block_table), k.shape[2]], dense=False)
        require(x.untyped_storage().nbytes() == 4, f"{name} is not a view of one number with a storage of its own")
    assert k_descale is not None
    assert v_descale is not None
    return float(k_descale[0, 0]), float(v_descale[0, 0])


_KNOWN = (
    "q", "k", "v", "out", "cu_seqlens_q", "max_seqlen_q", "max_seqlen_k", "softmax_scale", "causal", "window_size",
    "cu_seqlens_k", "seqused_k", "block_table", "k_descale", "v_descale", "s_aux",
)  # fmt: skip
_UNUSED = {
    name: value.default
    for name, value in signature(PACKAGE.functions["flash_attn_varlen_func"]).parameters.items()
    if name not in _KNOWN
}
