"""Kernels over the ops of vllm_xpu_kernels."""

from __future__ import annotations

import math
from typing import Any

import torch

from lsv.offers import OpSpec
from lsv_runtime.nn.mlp import GatedActivation
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.ops import Kernel
from lsv_runtime.weights.codebook import ROUNDED, CodedLinear
from lsv_xpu import libraries
from lsv_xpu.int4_weights import MIDDLE, Int4Linear, Int4Weights, take_int4, why_not_int4
from lsv_xpu.vllm.calls import VllmKernels

GATES = {
    "silu": "silu_and_mul",
    "gelu": "gelu_and_mul",
    "gelu_new": "gelu_tanh_and_mul",
    "gelu_pytorch_tanh": "gelu_tanh_and_mul",
}
"""The op of each activation's product."""
_FLOATS = ("float16", "bfloat16", "float32")


class RmsNorm(Kernel):
    """``lsv_runtime.nn.norm.RMSNorm`` over x [..., size]."""

    def __init__(self, module: RMSNorm, spec: OpSpec) -> None:
        self._module, self._library = module, _library()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.stride(-1) != 1 or not 2 <= x.dim() <= 4:  # of these the op reads rows where they are
            x = x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self._library.rms_norm(out, x, self._module.weight, self._module.eps)
        return out


class GatedProduct(Kernel):
    """``lsv_runtime.nn.mlp.GatedActivation`` over x [..., 2 * size]."""

    def __init__(self, module: GatedActivation, spec: OpSpec) -> None:
        self._library, self._op = _library(), GATES[module.name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
        getattr(self._library, self._op)(out, x)
        return out


class Rotate(Kernel):
    """``lsv_runtime.nn.rope.Rope`` over heads [T, any, head_dim]. The op turns them where they are, so ``forward``
    gives it a copy.
    """

    def __init__(self, module: Rope, spec: OpSpec) -> None:
        self._module, self._library = module, _library()
        self._head_dim, self._rotary = spec.shape["head_dim"], spec.shape["rotary_dim"]

    def pack(self) -> None:
        half, table = self._rotary // 2, self._module.table  # which stays for kernels of whole layers
        self._cos_sin = self._module.keep("cos_sin", torch.cat((table[:, :half], table[:, -half:]), dim=1))

    def forward(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        out = heads.clone(memory_format=torch.contiguous_format)
        self.turn(positions, out, None)
        return out

    def turn(self, positions: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor | None) -> None:
        """Turn both in place, see ``VllmKernels.rotary_embedding``."""
        self._library.rotary_embedding(positions.contiguous(), queries, keys, self._head_dim, self._cos_sin, True)


class VllmInt4Linear(Int4Linear):
    """``linear.int4`` and evenly ``linear.coded`` layers of 4 bits, over ``int4_gemm_w4a16``."""

    def __init__(self, module: Any, spec: OpSpec) -> None:
        super().__init__(module, spec)
        self._library = _library()

    def pack(self) -> None:
        module = self._module
        zeros = range(16) if self._width % 8 == 0 else range(0)
        weights = take_int4(module, zeros)
        self._weight = module.keep("packed", weights.nibbles.view(torch.int32))
        self._scales = module.keep("packed_scales", weights.scales.to(module.layer.dtype))
        self._zeros = module.keep("packed_zeros", _packed_zeros(weights))
        self.keep_rest(weights)

    def multiply(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._library.int4_gemm_w4a16(
            rows, self._weight.t(), bias, self._scales, self._zeros, self._group, self._order
        )


class Fp8Linear(Kernel):
    """``linear.coded`` layers whose codes are 8-bit floats with a scale an output, over ``fp8_gemm_w8a16``."""

    def __init__(self, module: CodedLinear, spec: OpSpec) -> None:
        self._module, self._library = module, _library()
        self._float = next(dtype for name, dtype in _FLOAT8.items() if name in spec.flags)

    def pack(self) -> None:
        module = self._module
        self._weight = module.keep("packed", module.release("codes"))
        self._scales = module.keep("packed_scales", module.release("scales").flatten())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        y = self._library.fp8_gemm_w8a16(rows, self._weight.view(self._float).t(), self._scales, self._module.bias)
        return y.view(*x.shape[:-1], -1)


class RoundedFp8Linear(Fp8Linear):
    """The same of layers made for activations in e4m3, over ``fp8_gemm``: a token is rounded as it comes (W8A8)."""

    def pack(self) -> None:
        super().pack()
        bound, self._bound = self._module.input_bound, None
        if math.isfinite(bound):
            self._bound = self._module.keep("token_bound", torch.tensor([bound], device=self._weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        codes, scales = torch.empty_like(rows, dtype=self._float), rows.new_empty(len(rows), 1, dtype=torch.float32)
        self._library.round_tokens(codes, rows, scales, self._bound)
        weight = self._weight.view(self._float).t()
        y = self._library.fp8_gemm(codes, weight, x.dtype, scales, self._scales, self._module.bias)
        return y.view(*x.shape[:-1], -1)


_FLOAT8 = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}


def _library() -> VllmKernels:
    found: VllmKernels = libraries.obtain(libraries.VLLM)
    return found


def _packed_zeros(weights: Int4Weights) -> torch.Tensor:
    """int8 [1], or int32 [groups, N / 8] of eight nibbles each."""
    if weights.zeros is None:
        return torch.tensor([MIDDLE], dtype=torch.int8, device=weights.nibbles.device)
    zeros = weights.zeros.to(torch.uint8)
    return (zeros[:, ::2] | zeros[:, 1::2] << 4).contiguous().view(torch.int32)


def why_not_vllm(spec: OpSpec) -> str | None:
    """None, or why vllm_xpu_kernels can't serve an op over plain floats."""
    missing = libraries.why_not(libraries.VLLM)
    if missing is not None:
        return f"lacks {missing}"
    return None if spec.dtype in _FLOATS else f"{spec.dtype} is not one of {', '.join(_FLOATS)}"


def why_not_vllm_int4(spec: OpSpec) -> str | None:
    missing = libraries.why_not(libraries.VLLM)
    return why_not_int4(spec) if missing is None else f"lacks {missing}"


def why_not_vllm_float8(spec: OpSpec) -> str | None:
    missing = libraries.why_not(libraries.VLLM)
    if missing is not None:
        return f"lacks {missing}"
    if not spec.flags & _FLOAT8.keys():
        return "codes are no 8-bit floats"
    if spec.dtype not in ("float16", "bfloat16"):
        return f"{spec.dtype} is not one of float16, bfloat16"
    if spec.shape["group"] or spec.flags & {"offsets", "ordered"}:
        return "has more than one scale an output"
    return None


def why_not_vllm_fp8_gemm(spec: OpSpec) -> str | None:
    refusal = why_not_vllm_float8(spec)
    if refusal is not None:
        return refusal
    if "float8_e4m3fn" not in spec.flags:
        return "weights are not e4m3"
    if ROUNDED not in spec.flags:
        return "activations are not meant to be rounded"
    missing = libraries.why_not(libraries.FP8_GEMM)
    return None if missing is None else f"lacks {missing}"
