"""A strict fake of vllm_xpu_kernels: the documented meaning of each op in plain torch, and its checks on arguments."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
from torch.nn import functional

from lsv.testing.emulation import StrictFake
from lsv.weights.codebook import from_nibbles
from lsv_xpu.emulation.attention import attend_row, read_pages, write_pages
from lsv_xpu.emulation.checks import check_devices, check_tensor, numbers, require

_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (*_HALVES, torch.float32)
_CODES = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_HEAD_DIMS = (64, 96, 128, 192, 256, 512)


class FakeVllmKernels(StrictFake):
    """Answers what ``VllmKernels`` calls, as 0.1.16.2 does."""

    library = "vllm_xpu_kernels"
    opaque: ClassVar[tuple[str, ...]] = (
        "reshape_and_cache_flash",
        "flash_attn_varlen_func",
        "grouped_gemm",
    )

    def rms_norm(self, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        self.record("rms_norm", tuple(out.shape))
        check_tensor("weight", weight, [x.dtype], [x.shape[-1]])
        check_tensor("result", out, [x.dtype], x.shape)
        check_tensor("input", x, _FLOATS, x.shape, dense=False)
        require(x.stride(-1) == 1, "input is not dense in its last axis")
        check_devices(result=out, input=x, weight=weight)
        out.copy_(functional.rms_norm(x.float(), weight.shape, weight.float(), eps))

    def silu_and_mul(self, out: torch.Tensor, x: torch.Tensor) -> None:
        self.record("silu_and_mul", tuple(out.shape))
        self._gated(out, x, functional.silu(x.float().chunk(2, -1)[0]))

    def gelu_and_mul(self, out: torch.Tensor, x: torch.Tensor) -> None:
        self.record("gelu_and_mul", tuple(out.shape))
        self._gated(out, x, functional.gelu(x.float().chunk(2, -1)[0]))

    def gelu_tanh_and_mul(self, out: torch.Tensor, x: torch.Tensor) -> None:
        self.record("gelu_tanh_and_mul", tuple(out.shape))
        self._gated(out, x, functional.gelu(x.float().chunk(2, -1)[0], approximate="tanh"))

    def _gated(self, out: torch.Tensor, x: torch.Tensor, gate: torch.Tensor) -> None:
        check_tensor("input", x, _FLOATS, x.shape)
        check_tensor("out", out, [x.dtype], (*x.shape[:-1], x.shape[-1] // 2))
        check_devices(out=out, input=x)
        out.copy_(gate.to(x.dtype) * x.chunk(2, -1)[1])

    def rotary_embedding(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None,
        head_size: int,
        cos_sin: torch.Tensor,
        neox: bool,
    ) -> None:
        self.record("rotary_embedding", tuple(positions.shape))
        require(neox, "the fake turns halves only")
        require(key is None, "the fake turns queries only")
        check_tensor("query", query, _FLOATS, [None, None, head_size], dense=False)
        check_tensor("positions", positions, [torch.int64], [len(query)])
        check_tensor("cos_sin_cache", cos_sin, [query.dtype], [None, None])
        check_devices(positions=positions, query=query, cos_sin_cache=cos_sin)
        half = cos_sin.shape[1] // 2
        cos, sin = cos_sin[positions].float()[:, None].split(half, dim=-1)
        x, y = query[..., :half].float(), query[..., half : 2 * half].float()
        query[..., : 2 * half] = torch.cat((x * cos - y * sin, y * cos + x * sin), dim=-1).to(query.dtype)

    def reshape_and_cache_flash(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slots: torch.Tensor,
        kv_cache_dtype: str,
        key_scale: torch.Tensor,
        value_scale: torch.Tensor,
    ) -> None:
        self.record("reshape_and_cache_flash", tuple(key.shape))
        require(kv_cache_dtype in ("auto", *_CODES), f"kv_cache_dtype is {kv_cache_dtype}")
        require(key_cache.stride(0) == value_cache.stride(0), "the caches have different strides from page to page")
        check_tensor("slot_mapping", slots, [torch.int64], [len(key)])
        check_devices(key=key, value=value, key_cache=key_cache, value_cache=value_cache, slot_mapping=slots)
        for name, x, cache, scale in (
            ("key", key, key_cache, key_scale),
            ("value", value, value_cache, value_scale),
        ):
            check_tensor(name, x, _FLOATS, [None, *cache.shape[2:]], dense=False)
            require(x.stride()[1:] == (x.shape[2], 1), f"a token's heads of {name} are not in one piece")
            check_tensor(f"{name}_cache", cache, [_CODES.get(kv_cache_dtype, x.dtype)], [None] * 4, dense=False)
            require(cache[0].is_contiguous(), f"a page of {name}_cache is not in one piece")
            check_tensor(f"{name}_scale", scale, [torch.float32], [1])
            write_pages(x if kv_cache_dtype == "auto" else x.float() / scale, cache, slots)

    def flash_attn_varlen_func(
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
        require(q.shape[-1] in _HEAD_DIMS, f"no kernel is compiled for heads of {q.shape[-1]}")
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
        scales = self._check_cache(q, k, v, block_table, k_descale, v_descale)
        check_devices(q=q, k=k, v=v, out=out, cu_seqlens_q=cu_seqlens_q, lengths=lengths, block_table=block_table)
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

    def _check_cache(
        self,
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
        check_tensor("k", k, [q.dtype, *_CODES.values()], [None] * 4, dense=False)
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

    def int4_gemm_w4a16(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        scales: torch.Tensor,
        zeros: torch.Tensor,
        group: int,
        order: torch.Tensor | None,
    ) -> torch.Tensor:
        self.record("int4_gemm_w4a16", tuple(x.shape))
        check_tensor("A", x, _HALVES, [None, weight.shape[0] * 8])
        inputs, outputs = x.shape[1], weight.shape[1]
        check_tensor("B", weight, [torch.int32], [inputs // 8, outputs], dense=False)
        require(weight.t().is_contiguous(), "B is not a transposed view of [N, K / 8]")
        require(group % 32 == 0 and inputs % group == 0, f"groups of {group} do not divide {inputs} inputs")
        check_tensor("B_scale", scales, [x.dtype], [inputs // group, outputs])
        check_devices(A=x, B=weight, B_scale=scales, B_zp=zeros, g_idx=order, bias=bias)
        if zeros.dim() == 1:
            check_tensor("B_zp", zeros, [torch.int8], [1])
            zero = zeros.float()
        else:
            check_tensor("B_zp", zeros, [torch.int32], [inputs // group, outputs // 8])
            zero = from_nibbles(zeros.view(torch.uint8)).float().repeat_interleave(group, dim=0).t()
        if bias is not None:
            check_tensor("bias", bias, [x.dtype], [outputs])
        if order is not None:
            check_tensor("g_idx", order, [torch.int32], [inputs])
            x = x.index_select(-1, order)
        codes = from_nibbles(weight.t().contiguous().view(torch.uint8)).float()
        decoded = (codes - zero) * scales.float().repeat_interleave(group, dim=0).t()
        return functional.linear(x.float(), decoded, None if bias is None else bias.float()).to(x.dtype)

    def fp8_gemm_w8a16(
        self, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        self.record("fp8_gemm_w8a16", tuple(x.shape))
        check_tensor("A", x, _HALVES, [None, weight.shape[0]])
        check_tensor("B", weight, tuple(_CODES.values()), [x.shape[1], None], dense=False)
        require(weight.t().is_contiguous(), "B is not a transposed view of [N, K]")
        check_tensor("B_scale", scales, [torch.float32], [1 if scales.numel() == 1 else weight.shape[1]])
        if bias is not None:
            check_tensor("bias", bias, [x.dtype], [weight.shape[1]])
        check_devices(A=x, B=weight, B_scale=scales, bias=bias)
        decoded = weight.t().float() * scales[:, None]
        return functional.linear(x.float(), decoded, None if bias is None else bias.float()).to(x.dtype)

    def grouped_gemm(self, out: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, rows: torch.Tensor) -> None:
        self.record("grouped_gemm", tuple(x.shape))
        experts, inputs, outputs = weights.shape
        check_tensor("ptr_A", x, _HALVES, [None, inputs])
        check_tensor("ptr_B", weights, [x.dtype], [experts, inputs, outputs])
        check_tensor("ptr_D", out, [x.dtype], [len(x), outputs])
        check_tensor("rows_per_expert", rows, [torch.int32], [experts])
        check_devices(ptr_A=x, ptr_B=weights, ptr_D=out, rows_per_expert=rows)
        require(outputs % 8 == 0, f"N is {outputs}, no multiple of 8")
        counts = numbers(rows)
        require(sum(counts) == len(x), f"rows_per_expert adds up to {sum(counts)}, and there are {len(x)}")
        done = 0
        for expert, count in enumerate(counts):
            out[done : done + count] = (x[done : done + count].float() @ weights[expert].float()).to(x.dtype)
            done += count
