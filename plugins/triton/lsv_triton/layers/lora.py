"""Low-rank adapters of many requests in one batch: ``y += x A_s^T B_s^T``, each token with the slot ``s`` of its own.

Source: Hu et al., LoRA, 2021; adapters gathered by token as in Chen et al., Punica, 2023. A program computes outputs of
one token, in a fixed order over its inputs, so a row's bits do not depend on the batch. Scaling is part of ``B``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lsv_triton.device_table import launch


@triton.jit
def _project(
    x,  # [tokens, inputs]
    weights,  # [slots, outputs, inputs]; the last axis is dense
    slots,  # int32 [tokens], -1: none
    out,  # [tokens, outputs]
    inputs,
    outputs,
    x_stride,
    out_stride,
    ADD: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    there = output < outputs
    slot = tl.load(slots + token).to(tl.int64)
    place = out + token * out_stride + output
    if slot >= 0:
        rows = weights + slot * outputs * inputs + output.to(tl.int64)[:, None] * inputs
        sums = tl.zeros((OUTPUTS,), tl.float32)
        for start in range(0, inputs, INPUTS):
            input = start + tl.arange(0, INPUTS)
            value = tl.load(x + token * x_stride + input, mask=input < inputs, other=0.0).to(tl.float32)
            mask = there[:, None] & (input < inputs)[None, :]
            weight = tl.load(rows + input[None, :], mask=mask, other=0.0).to(tl.float32)
            sums += tl.sum(weight * value[None, :], axis=1)
        if ADD:
            sums += tl.load(place, mask=there, other=0.0).to(tl.float32)
        tl.store(place, sums, mask=there)
    elif not ADD:
        tl.store(place, tl.zeros((OUTPUTS,), tl.float32), mask=there)


def shrink(x: torch.Tensor, slots: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """x [T, in], slots int32 [T] (-1: none), a [slots, rank, in] -> float32 [T, rank], 0 where there is no adapter."""
    out = torch.empty((len(x), a.shape[1]), dtype=torch.float32, device=x.device)
    _run("shrink", x, a, slots, out, add=False)
    return out


def expand(y: torch.Tensor, h: torch.Tensor, slots: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Add ``h B_s^T`` to y [T, out], in place: h [T, rank], slots int32 [T] (-1: none), b [slots, out, rank].

    Rows of ``y`` may be part of wider ones, as the share of one projection in a fused one is.
    """
    _run("expand", h, b, slots, y, add=True)
    return y


def shrink_reference(x: torch.Tensor, slots: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """``shrink`` in plain torch."""
    out = torch.einsum("ti,tri->tr", x.float(), a[slots.clamp(min=0)].float())
    return out.masked_fill_((slots < 0).unsqueeze(-1), 0.0)


def expand_reference(y: torch.Tensor, h: torch.Tensor, slots: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``expand`` in plain torch."""
    added = torch.einsum("tr,tor->to", h.float(), b[slots.clamp(min=0)].float())
    return y.copy_(torch.where((slots < 0).unsqueeze(-1), y.float(), y.float() + added))


def _run(op: str, x: torch.Tensor, weights: torch.Tensor, slots: torch.Tensor, out: torch.Tensor, *, add: bool) -> None:
    x, weights = x.contiguous(), weights.contiguous()
    outputs, inputs = weights.shape[1:]
    tile = launch(op, x.device)
    many = min(tile["outputs"], triton.next_power_of_2(outputs))
    _project[(len(x), triton.cdiv(outputs, many))](
        x, weights, slots, out, inputs, outputs, x.stride(0), out.stride(0),
        ADD=add, OUTPUTS=many, INPUTS=min(tile["inputs"], triton.next_power_of_2(inputs)), num_warps=tile.warps,
    )  # fmt: skip
