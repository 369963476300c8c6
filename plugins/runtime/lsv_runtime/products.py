"""Matrix products in which no row affects another, whatever the row holds; and convolutions.

On processors with AMX, torch's product of bfloat16 with an odd inner size lets a NaN or an infinity in a row of the
left operand reach the row before it. Even sizes and other dtypes do not have this fault. These functions pad an odd
inner size with a zero, so that the NaN of one request stays in its own rows.

Use them wherever the rows of the left operand may belong to different requests, or may be padding.

On processors without instructions for the dtype they compute in float32: torch has plain loops there.
"""

from __future__ import annotations

import torch
from torch.nn import functional

_ROWS_FOR_FLOAT32 = 16
"""With fewer rows torch's loops take less time than making a weight's numbers float32."""
_OUTPUTS_AT_ONCE = 4096
"""Of a weight, to bound the memory that its numbers take as float32."""


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``torch.matmul`` of a [..., rows, K] and b [..., K, columns]."""
    if not has_instructions(a):
        return torch.matmul(a.float(), b.float()).to(a.dtype)
    if _reads_past_rows(a, -1):
        a, b = functional.pad(a, (0, 1)), functional.pad(b, (0, 0, 0, 1))
    return torch.matmul(a, b)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``functional.linear``: x [..., K], weight [outputs, K], bias [outputs]."""
    if x.shape[:-1].numel() >= _ROWS_FOR_FLOAT32 and not has_instructions(x):
        return _linear_in_float32(x, weight, bias)
    if _reads_past_rows(x, -1):
        x, weight = functional.pad(x, (0, 1)), functional.pad(weight, (0, 1))
    return functional.linear(x, weight, bias)


def einsum(equation: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``torch.einsum`` of two operands with one summed index, such as ``"thd,hdr->thr"``."""
    if not has_instructions(a):
        return torch.einsum(equation, a.float(), b.float()).to(a.dtype)
    inputs, _, output = equation.partition("->")
    left, right = inputs.split(",")
    (summed,) = (set(left) & set(right)) - set(output)
    if _reads_past_rows(a, left.index(summed)):
        a, b = (_append_zero(x, names.index(summed)) for x, names in ((a, left), (b, right)))
    return torch.einsum(equation, a, b)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
    grouped: bool = False,
) -> torch.Tensor:
    """``functional.scaled_dot_product_attention``: q [..., heads, T, dim], k and v [..., kv_heads, S, dim].

    ``mask`` is added to the scores, or says with bool which keys are seen. ``grouped`` lets several heads share a KV
    head.
    """
    width = v.shape[-1]
    if _reads_past_rows(q, -1):
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        q, k, v = (functional.pad(x, (0, 1)) for x in (q, k, v))
    if _reads_past_rows(k, -2):
        mask = _hide_one_more(q, k, mask)
        k, v = (functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
    found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return found[..., :width]


def convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int | tuple[int, ...] = 1,
    padding: int | str | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> torch.Tensor:
    """``functional.conv1d``, ``conv2d`` or ``conv3d``: x [N, inputs, ...], weight [outputs, inputs / groups, ...]."""
    compute = (functional.conv1d, functional.conv2d, functional.conv3d)[weight.ndim - 3]
    if has_instructions(x):
        return compute(x, weight, bias, stride, padding, dilation, groups)
    wide = None if bias is None else bias.float()
    return compute(x.float(), weight.float(), wide, stride, padding, dilation, groups).to(x.dtype)


def has_instructions(x: torch.Tensor) -> bool:
    """Whether torch multiplies numbers of this dtype with instructions of the device for them.

    It has plain loops for bfloat16 and float16 on some CPUs. There a product in float32 is about seven times as
    fast, and a convolution thirty times.
    """
    if not x.is_cpu:
        return True
    if x.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if x.dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return True


def _linear_in_float32(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    wide = x.float()
    y = torch.cat([functional.linear(wide, some.float()) for some in torch.split(weight, _OUTPUTS_AT_ONCE)], dim=-1)
    return (y if bias is None else y.add_(bias)).to(x.dtype)


def _reads_past_rows(x: torch.Tensor, dim: int) -> bool:
    return x.dtype is torch.bfloat16 and x.shape[dim] % 2 == 1


def _append_zero(x: torch.Tensor, dim: int) -> torch.Tensor:
    return functional.pad(x, (0, 0) * (x.ndim - 1 - dim) + (0, 1))


def _hide_one_more(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The mask with a last column for a key that no query sees."""
    if mask is None:
        mask = torch.zeros(1, k.shape[-2], dtype=q.dtype, device=q.device)
    return functional.pad(mask, (0, 1), value=False if mask.dtype is torch.bool else -torch.inf)
