"""The documented meaning of the ops of vllm_xpu_kernels in plain torch, and their checks on arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from lsv_runtime.emulation.fakes import StrictFake
from lsv_runtime.emulation.vendors.attention import write_pages
from lsv_runtime.emulation.vendors.checks import check_devices, check_tensor, numbers, require
from lsv_runtime.weights.codebook import from_nibbles
from lsv_xpu.emulation.vllm_flash import CODES as _CODES
from lsv_xpu.emulation.vllm_flash import why_not_compiled

_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (*_HALVES, torch.float32)


class VllmOps(StrictFake):
    """Each method is an op, with the arguments of its schema; its calls are those of ``fake``."""

    def __init__(self, fake: StrictFake) -> None:
        super().__init__()
        self.calls, self.log = fake.calls, fake.log

    def rms_norm(self, result: torch.Tensor, input: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> None:
        self.record("rms_norm", tuple(result.shape))
        require(weight is not None, "0.1.9 has no norm without a weight")
        assert weight is not None
        check_tensor("weight", weight, [input.dtype], [input.shape[-1]])
        check_tensor("result", result, [input.dtype], input.shape)
        check_tensor("input", input, _FLOATS, input.shape, dense=False)
        require(input.stride(-1) == 1, "input is not dense in its last axis")
        check_devices(result=result, input=input, weight=weight)
        result.copy_(functional.rms_norm(input.float(), weight.shape, weight.float(), epsilon))

    def fused_add_rms_norm(
        self, input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
    ) -> None:
        self.record("fused_add_rms_norm", tuple(input.shape))
        require(weight is not None, "0.1.9 has no norm without a weight")
        assert weight is not None
        check_tensor("weight", weight, [input.dtype], [input.shape[-1]])
        check_tensor("input", input, _FLOATS, [None, None])  # the op reads residual as if its rows lay like input's
        check_tensor("residual", residual, [input.dtype], input.shape)
        require(input.data_ptr() != residual.data_ptr(), "input and residual are the same memory")
        check_devices(input=input, residual=residual, weight=weight)
        residual.copy_((input.float() + residual.float()).to(input.dtype))
        input.copy_(functional.rms_norm(residual.float(), weight.shape, weight.float(), epsilon))

    def silu_and_mul(self, result: torch.Tensor, input: torch.Tensor) -> None:
        self.record("silu_and_mul", tuple(result.shape))
        self._gated(result, input, functional.silu(input.float().chunk(2, -1)[0]))

    def gelu_and_mul(self, out: torch.Tensor, input: torch.Tensor) -> None:
        self.record("gelu_and_mul", tuple(out.shape))
        self._gated(out, input, functional.gelu(input.float().chunk(2, -1)[0]))

    def gelu_tanh_and_mul(self, out: torch.Tensor, input: torch.Tensor) -> None:
        self.record("gelu_tanh_and_mul", tuple(out.shape))
        self._gated(out, input, functional.gelu(input.float().chunk(2, -1)[0], approximate="tanh"))

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
        cos_sin_cache: torch.Tensor,
        is_neox: bool,
    ) -> None:
        self.record("rotary_embedding", tuple(positions.shape))
        require(is_neox, "the fake turns halves only")
        require(query.dtype in _FLOATS, f"query is {query.dtype}")
        check_tensor("positions", positions, [torch.int64], [len(query)])
        check_tensor("cos_sin_cache", cos_sin_cache, [query.dtype], [None, None])
        check_devices(positions=positions, query=query, key=key, cos_sin_cache=cos_sin_cache)
        half = cos_sin_cache.shape[1] // 2
        cos, sin = cos_sin_cache[positions].float()[:, None].split(half, dim=-1)
        for name, heads in (("query", query), ("key", key)):
            if heads is None:
                continue
            check_tensor(name, heads, [query.dtype], [len(query), None, head_size], dense=False)
            require(query.shape[1] % heads.shape[1] == 0, "query has no multiple of the key's heads")
            require(heads.stride()[1:] == (head_size, 1), f"a token's heads of {name} are not in one piece")
            x, y = heads[..., :half].float(), heads[..., half : 2 * half].float()
            heads[..., : 2 * half] = torch.cat((x * cos - y * sin, y * cos + x * sin), dim=-1).to(query.dtype)

    def reshape_and_cache_flash(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        v_scale: torch.Tensor,
    ) -> None:
        self.record("reshape_and_cache_flash", tuple(key.shape))
        require(kv_cache_dtype in ("auto", *_CODES), f"kv_cache_dtype is {kv_cache_dtype}")
        require(key_cache.stride(0) == value_cache.stride(0), "the caches have different strides from page to page")
        check_tensor("slot_mapping", slot_mapping, [torch.int64], [len(key)])
        check_devices(key=key, value=value, key_cache=key_cache, value_cache=value_cache, slot_mapping=slot_mapping)
        for name, x, cache, scale in (
            ("key", key, key_cache, k_scale),
            ("value", value, value_cache, v_scale),
        ):
            check_tensor(name, x, _FLOATS, [None, *cache.shape[2:]], dense=False)
            require(x.stride()[1:] == (x.shape[2], 1), f"a token's heads of {name} are not in one piece")
            check_tensor(f"{name}_cache", cache, [_CODES.get(kv_cache_dtype, x.dtype)], [None] * 4, dense=False)
            require(cache[0].is_contiguous(), f"a page of {name}_cache is not in one piece")
            check_tensor(f"{name}_scale", scale, [torch.float32], [1])
            write_pages(x if kv_cache_dtype == "auto" else x.float() / scale, cache, slot_mapping)

    def varlen_fwd(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        softmax_sink: torch.Tensor | None,
        is_causal: bool,
        window_size_left: int,
        window_size_right: int,
        max_seqlen_q: int,
        block_table: torch.Tensor | None,
        **others: Any,
    ) -> list[torch.Tensor]:
        """Answers only whether there are kernels: raises what the op raises where one of them is not compiled in."""
        self.record("varlen_fwd", tuple(q.shape))
        local = window_size_left >= 0 or window_size_right >= 0
        missing = why_not_compiled(q, k, block_table, max_seqlen_q, is_causal, local, softmax_sink is not None)
        if missing is not None:
            raise RuntimeError(f"{missing} kernel not compiled for this configuration.\n\nAdd this line …")
        return [torch.zeros_like(q)]

    def int4_gemm_w4a16(
        self,
        A: torch.Tensor,
        B: torch.Tensor,
        bias: torch.Tensor | None,
        B_scale: torch.Tensor,
        B_zp: torch.Tensor,
        group_size: int,
        g_idx: torch.Tensor | None,
    ) -> torch.Tensor:
        self.record("int4_gemm_w4a16", tuple(A.shape))
        x, weight, scales, zeros, group, order = A, B, B_scale, B_zp, group_size, g_idx
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
        self, A: torch.Tensor, B: torch.Tensor, B_scale_: torch.Tensor | None, bias_: torch.Tensor | None
    ) -> torch.Tensor:
        self.record("fp8_gemm_w8a16", tuple(A.shape))
        require(B_scale_ is not None, "no scales")
        assert B_scale_ is not None
        x, weight, scales, bias = A, B, B_scale_, bias_
        check_tensor("A", x, _HALVES, [None, weight.shape[0]])
        check_tensor("B", weight, tuple(_CODES.values()), [x.shape[1], None], dense=False)
        require(weight.t().is_contiguous(), "B is not a transposed view of [N, K]")
        check_tensor("B_scale", scales, [torch.float32], [1 if scales.numel() == 1 else weight.shape[1]])
        if bias is not None:
            check_tensor("bias", bias, [x.dtype], [weight.shape[1]])
        check_devices(A=x, B=weight, B_scale=scales, bias=bias)
        decoded = weight.t().float() * scales[:, None]
        return functional.linear(x.float(), decoded, None if bias is None else bias.float()).to(x.dtype)

    def dynamic_per_token_scaled_fp8_quant(
        self, result: torch.Tensor, input: torch.Tensor, scale: torch.Tensor, scale_ub: torch.Tensor | None
    ) -> None:
        self.record("dynamic_per_token_scaled_fp8_quant", tuple(input.shape))
        check_tensor("input", input, _FLOATS, [None, None])
        check_tensor("result", result, [torch.float8_e4m3fn], input.shape)
        check_tensor("scale", scale, [torch.float32], [len(input), 1])
        if scale_ub is not None:
            check_tensor("scale_ub", scale_ub, [torch.float32], [1])
        check_devices(result=result, input=input, scale=scale, scale_ub=scale_ub)
        largest = torch.finfo(result.dtype).max
        peaks = input.float().abs().amax(-1, keepdim=True)
        peaks = peaks if scale_ub is None else torch.minimum(peaks, scale_ub)
        scale.copy_((peaks / largest).clamp(min=1 / (512 * largest)))
        result.copy_((input.float() / scale).clamp(-largest, largest).to(result.dtype))

    def fp8_gemm(
        self,
        A: torch.Tensor,
        B: torch.Tensor,
        out_dtype: torch.dtype | None,
        A_scale_: torch.Tensor | None,
        B_scale_: torch.Tensor | None,
        bias_: torch.Tensor | None,
    ) -> torch.Tensor:
        self.record("fp8_gemm", tuple(A.shape))
        assert out_dtype in _HALVES, f"results in {out_dtype}"
        assert A_scale_ is not None and B_scale_ is not None, "no scales"  # noqa: PT018
        check_tensor("A", A, tuple(_CODES.values()), [None, B.shape[0]])
        check_tensor("B", B, [A.dtype], [A.shape[1], None], dense=False)
        require(B.t().is_contiguous(), "B is not a transposed view of [N, K]")
        check_tensor("A_scale", A_scale_, [torch.float32], [len(A), 1])
        check_tensor("B_scale", B_scale_, [torch.float32], [1 if B_scale_.numel() == 1 else B.shape[1]])
        if bias_ is not None:
            check_tensor("bias", bias_, [out_dtype], [B.shape[1]])
        check_devices(A=A, B=B, A_scale=A_scale_, B_scale=B_scale_, bias=bias_)
        weight = B.t().float() * B_scale_[:, None]
        return functional.linear(A.float() * A_scale_, weight, None if bias_ is None else bias_.float()).to(out_dtype)

    def cutlass_grouped_gemm_interface(
        self,
        ptr_A: torch.Tensor,
        ptr_A_scale: torch.Tensor | None,
        ptr_B: torch.Tensor,
        ptr_B_scale: torch.Tensor | None,
        ptr_bias: torch.Tensor | None,
        ptr_D: torch.Tensor,
        rows_per_expert: torch.Tensor,
        N: int,
        K: int,
        num_experts: int,
    ) -> torch.Tensor:
        self.record("cutlass_grouped_gemm_interface", tuple(ptr_A.shape))
        x, weights, out, rows = ptr_A, ptr_B, ptr_D, rows_per_expert
        experts, inputs, outputs = weights.shape
        require(
            (num_experts, K, N) == (experts, inputs, outputs), f"{num_experts} of [{K}, {N}] are not {weights.shape}"
        )
        require(ptr_A_scale is None and ptr_B_scale is None and ptr_bias is None, "the fake multiplies plain floats")
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
        return out
