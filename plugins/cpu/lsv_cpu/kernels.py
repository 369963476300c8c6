"""Kernels for single ops that take torch several ops, or a slow one; also those that quantise weights while loading."""

from __future__ import annotations

import ctypes

import torch

from lsv.offers import OpSpec
from lsv_cpu import native
from lsv_runtime.nn.mlp import GatedActivation
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.ops import Bindable, Kernel


class RmsNorm(Kernel):
    """``lsv_runtime.nn.norm.RMSNorm``; x [T, size], [T, heads, size] as a slice of a fused projection, or anything
    else.
    """

    def __init__(self, module: RMSNorm, spec: OpSpec) -> None:
        self._module, self._library = module, selected_library()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[-1]
        if _dense_rows(x):
            heads, stride = x.shape[1:-1].numel(), x.stride(0)
        else:
            x, heads, stride = x.contiguous(), 1, size
        out = torch.empty(x.shape, dtype=x.dtype)
        weight = self._module.weight
        self._library.lsv_rms_norm(
            native.DTYPES[x.dtype],
            x.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            x.numel() // (heads * size),
            heads,
            stride,
            size,
            self._module.eps,
        )
        return out


class SiluMul(Kernel):
    """``lsv_runtime.nn.mlp.GatedActivation`` for silu: gate and product in one pass."""

    def __init__(self, module: GatedActivation, spec: OpSpec) -> None:
        self._library = selected_library()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        size = x.shape[-1] // 2
        out = torch.empty((*x.shape[:-1], size), dtype=x.dtype)
        self._library.lsv_silu_mul(native.DTYPES[x.dtype], x.data_ptr(), out.data_ptr(), x.numel() // (2 * size), size)
        return out


class Rotate(Kernel):
    """``lsv_runtime.nn.rope.Rope``: heads [T, any, head_dim] and positions int64 [T] -> the rotated heads, same
    shape.
    """

    def __init__(self, module: Rope, spec: OpSpec) -> None:
        self._module, self._library = module, selected_library()
        self._rotary = spec.shape["rotary_dim"]

    def forward(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        heads = heads if _dense_rows(heads) else heads.contiguous()
        positions = positions.contiguous()
        tokens, count, dim = heads.shape
        out = torch.empty(heads.shape, dtype=heads.dtype)
        self._library.lsv_rotate(
            native.DTYPES[heads.dtype],
            heads.data_ptr(),
            positions.data_ptr(),
            self._module.table.data_ptr(),
            out.data_ptr(),
            tokens,
            count,
            dim,
            self._rotary,
            heads.stride(0),
        )
        return out


class RoundInt8(Kernel):
    """weight [outputs, inputs] -> int8 codes and float32 scales [outputs], written into ``codes`` and ``scales``."""

    def __init__(self, module: Bindable, spec: OpSpec) -> None:
        self._library = selected_library()

    def forward(self, weight: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        weight = weight.contiguous()
        self._library.lsv_quantise_int8(
            native.DTYPES[weight.dtype], weight.data_ptr(), *weight.shape, codes.data_ptr(), scales.data_ptr()
        )
        return codes


class RoundInt4(Kernel):
    """weight [outputs, inputs] -> nibbles uint8 [outputs, ceil(inputs / 2)] and float32 scales [outputs, groups]."""

    def __init__(self, module: Bindable, spec: OpSpec) -> None:
        self._library, self._group = selected_library(), spec.shape["group"]

    def forward(self, weight: torch.Tensor, nibbles: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        weight = weight.contiguous()
        self._library.lsv_quantise_int4(
            native.DTYPES[weight.dtype],
            weight.data_ptr(),
            *weight.shape,
            self._group,
            nibbles.data_ptr(),
            scales.data_ptr(),
        )
        return nibbles


def selected_library() -> ctypes.CDLL:
    """The native code selected for this process; ``supports`` of a kernel has found that there is some."""
    library = native.library()
    assert library is not None, "a native kernel was bound without native code"
    return library


def why_not_native(spec: OpSpec) -> str | None:
    dtypes = [str(dtype).removeprefix("torch.") for dtype in native.DTYPES]
    if spec.dtype not in dtypes:
        return f"{spec.dtype} is not one of {', '.join(dtypes)}"
    return None if native.library() is not None else "no native code: cpu.native=off, or no compiler"


def _dense_rows(x: torch.Tensor) -> bool:
    """Whether all axes but the first are contiguous, as in a slice of a fused projection."""
    expected = 1
    for size, stride in zip(reversed(x.shape[1:]), reversed(x.stride()[1:]), strict=True):
        if stride != expected:
            return False
        expected *= size
    return x.dim() in (2, 3)
