"""The calls into vllm_xpu_kernels. Signatures are those of its 0.1.16.2: the schemas its libraries register, and its
``flash_attn_interface.py``. 0.1.9 has the same ones, but that ``rms_norm`` must have a weight there.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch


class VllmKernels:
    """Every method is one op. ``out`` and what is said to be written in place are outputs; nothing else is touched.

    Tensors are float16 or bfloat16 on the device, dense in their last axis, unless it is said otherwise.
    """

    def __init__(self, ops: Any = None, flash: Any = None) -> None:
        """``ops`` stands for ``torch.ops``, and ``flash`` for the package's module of attention; without them they are
        the installed ones.
        """
        if ops is None:
            for name in ("_C", "_xpu_C"):
                importlib.import_module(f"vllm_xpu_kernels.{name}")
            ops, flash = torch.ops, importlib.import_module("vllm_xpu_kernels.flash_attn_interface")
        self._ops, self._cache, self._xpu = ops._C, ops._C_cache_ops, ops._xpu_C
        self._flash, self._attention = flash, ops._vllm_fa2_C

    def _here(self) -> torch.device:
        """The device that ops run on which are not given a tensor of the caller's."""
        return torch.device("xpu")

    def rms_norm(self, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """x [..., size] and weight [size] -> out, dense, of x's shape."""
        self._ops.rms_norm(out, x, weight, eps)

    def fused_add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """x and residual [T, size], dense, and weight [size]: residual becomes their sum, and x the sum normed."""
        self._ops.fused_add_rms_norm(x, residual, weight, eps)

    def silu_and_mul(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """x [..., 2 * size], dense: silu(first half) * second half -> out [..., size], dense."""
        self._ops.silu_and_mul(out, x)

    def gelu_and_mul(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """The same with the exact gelu."""
        self._ops.gelu_and_mul(out, x)

    def gelu_tanh_and_mul(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """The same with gelu's approximation by tanh."""
        self._ops.gelu_tanh_and_mul(out, x)

    def rotary_embedding(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None,
        head_size: int,
        cos_sin: torch.Tensor,
        neox: bool,
    ) -> None:
        """Turns query [T, heads, head_size] and key [T, kv_heads, head_size] in place; both may be slices of rows, with
        a token's heads one after the other. positions int64 [T]; cos_sin [positions, rotary], cosines before sines,
        dense and in the query's dtype. ``neox`` pairs feature i with i + rotary / 2.
        """
        self._ops.rotary_embedding(positions, query, key, head_size, cos_sin, neox)

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
        """Writes key and value [T, kv_heads, dim], a token's heads in one piece, divided by the scales float32 [1], to
        places slots int64 [T] (page * block + place) of the caches [pages, block, kv_heads, dim]. Both caches have the
        same stride from page to page. ``kv_cache_dtype``: auto, fp8_e4m3, fp8_e5m2.
        """
        self._cache.reshape_and_cache_flash(
            key, value, key_cache, value_cache, slots, kv_cache_dtype, key_scale, value_scale
        )

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
        """q [T, heads, dim] over k and v: [K, kv_heads, dim] with ``cu_seqlens_k``, or pages [pages, block, kv_heads,
        dim] with ``seqused_k`` [rows] and ``block_table`` [rows, blocks]; exactly one of the two. All of these are
        int32. Queries are a row's last tokens. ``window_size`` counts tokens to the left and right, -1 for all.
        Descales are float32 [rows, kv_heads], expanded from one number with a storage of its own; ``s_aux`` [heads] are
        sinks in q's dtype. A soft cap and ALiBi slopes are in the signature too, but reach no kernel.
        """
        return self._flash.flash_attn_varlen_func(  # type: ignore[no-any-return]
            q,
            k,
            v,
            max_seqlen_q,
            cu_seqlens_q,
            max_seqlen_k,
            cu_seqlens_k=cu_seqlens_k,
            seqused_k=seqused_k,
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=list(window_size),
            block_table=block_table,
            out=out,
            k_descale=k_descale,
            v_descale=v_descale,
            s_aux=s_aux,
        )

    def why_not_attention(
        self, heads: int, kv_heads: int, head_dim: int, block_size: int, *, causal: bool, window: bool, sinks: bool
    ) -> str | None:
        """None, or the first words of why the package has no kernels for a paged cache and such heads.

        What is not compiled into it ``flash_attn_varlen_func`` computes in plain torch, over copies on the host. So the
        op below is asked, with a row of two queries, for which it takes its kernels for several queries and for one.
        """

        here = self._here()

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, device=here)

        q = zeros(2, heads, head_dim, dtype=torch.float16)
        pages = zeros(1, block_size, kv_heads, head_dim, dtype=torch.float16)
        reach = block_size if window else -1
        known: dict[str, Any] = {
            "q": q, "k": pages, "v": pages.clone(), "out": torch.empty_like(q),
            "cu_seqlens_q": torch.tensor([0, 2], dtype=torch.int32, device=here), "cu_seqlens_k": zeros(2),
            "seqused_k": zeros(1).fill_(2), "block_table": zeros(1, 1), "max_seqlen_q": 2, "max_seqlen_k": 2,
            "p_dropout": 0.0, "softmax_scale": 1.0, "softcap": 0.0, "is_causal": causal, "mix_batch": True,
            "window_size_left": reach, "window_size_right": 0 if window and causal else reach,
            "softmax_sink": zeros(heads, dtype=torch.float16) if sinks else None,
            "zero_tensors": False, "return_softmax": False,
            **dict.fromkeys(("leftpad_k", "alibi_slopes", "q_scale", "k_scale", "v_scale", "gen", "num_splits")),
            **dict.fromkeys(("splits_per_seq", "work_list")),
        }  # fmt: skip
        op = self._attention.varlen_fwd
        given = {argument.name: known.get(argument.name) for argument in op.default._schema.arguments}
        if unknown := given.keys() - known.keys():
            return f"its attention has arguments that are not known here: {', '.join(sorted(unknown))}"
        try:
            op(**given)
        except RuntimeError as refused:
            return str(refused).partition("\n")[0]
        return None

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
        """x [T, K] -> [T, N]: weights are (nibble - zero) * scale. weight int32 [K / 8, N], a transposed view of
        [N, K / 8] with the first of eight nibbles in the low bits; scales [K / group, N], dense, in x's dtype; zeros
        int8 [1] for all, or int32 [K / group, N / 8] of nibbles; order int32 [K] or None: the input of each column.
        """
        return self._xpu.int4_gemm_w4a16(x, weight, bias, scales, zeros, group, order)  # type: ignore[no-any-return]

    def fp8_gemm_w8a16(
        self, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """x [T, K] -> [T, N]. weight float8_e4m3fn or float8_e5m2 [K, N], a transposed view of [N, K]; scales float32
        [1] or [N].
        """
        return self._xpu.fp8_gemm_w8a16(x, weight, scales, bias)  # type: ignore[no-any-return]

    def round_tokens(
        self, codes: torch.Tensor, x: torch.Tensor, scales: torch.Tensor, bound: torch.Tensor | None
    ) -> None:
        """x [T, K], dense -> codes float8_e4m3fn [T, K] and scales float32 [T, 1]: a token's largest number becomes the
        largest of them, but what is beyond ``bound`` float32 [1] is clamped to it.
        """
        self._ops.dynamic_per_token_scaled_fp8_quant(codes, x, scales, bound)

    def fp8_gemm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        dtype: torch.dtype,
        x_scales: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """x [T, K] -> [T, N] in dtype, float16 or bfloat16. x and weight [K, N], a transposed view of [N, K], are both
        float8_e4m3fn; x_scales float32 [T, 1], scales float32 [1] or [N].
        """
        return self._xpu.fp8_gemm(x, weight, dtype, x_scales, scales, bias)  # type: ignore[no-any-return]

    def grouped_gemm(self, out: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, rows: torch.Tensor) -> None:
        """x [M, K], rows of one expert after another, by weights [experts, K, N] -> out [M, N], all dense; rows int32
        [experts] counts them.
        """
        self._xpu.cutlass_grouped_gemm_interface(
            ptr_A=x,
            ptr_A_scale=None,
            ptr_B=weights,
            ptr_B_scale=None,
            ptr_bias=None,
            ptr_D=out,
            rows_per_expert=rows,
            N=weights.shape[2],
            K=weights.shape[1],
            num_experts=weights.shape[0],
        )
