"""Low-rank adapters of many requests in one batch: ``y += x A_s^T B_s^T``, each token with the slot ``s`` of its own.

Source: Hu et al., LoRA, 2021; adapters gathered by token as in Chen et al., Punica, 2023. A program computes outputs of
one token, in a fixed order over its inputs, so a row's bits do not depend on the batch. Scaling is part of ``B``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lsv.offers import OpSpec
from lsv_runtime.adapters.slots import AdapterSlots
from lsv_runtime.nn.step import TokenAdapters
from lsv_runtime.ops import Kernel
from lsv_triton.device_table import launch


@triton.jit
def _project(
    x,  # [tokens, inputs]
    weights,  # [slots, outputs, inputs]
    slots,  # int32 [tokens], -1: none
    out,  # [tokens, outputs]
    inputs,
    outputs,
    x_stride,
    out_stride,
    slot_stride,  # of weights, as the next two
    output_stride,
    input_stride,
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
        rows = weights + slot * slot_stride + output.to(tl.int64)[:, None] * output_stride
        sums = tl.zeros((OUTPUTS,), tl.float32)
        for start in range(0, inputs, INPUTS):
            input = start + tl.arange(0, INPUTS)
            value = tl.load(x + token * x_stride + input, mask=input < inputs, other=0.0).to(tl.float32)
            mask = there[:, None] & (input < inputs)[None, :]
            weight = tl.load(rows + input[None, :] * input_stride, mask=mask, other=0.0).to(tl.float32)
            sums += tl.sum(weight * value[None, :], axis=1)
        if ADD:
            sums += tl.load(place, mask=there, other=0.0).to(tl.float32)
        tl.store(place, sums, mask=there)
    elif not ADD:
        tl.store(place, tl.zeros((OUTPUTS,), tl.float32), mask=there)


def shrink(x: torch.Tensor, slots: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """x [T, in], slots int32 [T] (-1: none), a [slots, rank, in] -> float32 [T, rank], 0 where there is no adapter.

    Weights, here and in ``expand``, may be any view: of several projections' matrices, or of one that is transposed.
    """
    out = torch.empty((len(x), a.shape[1]), dtype=torch.float32, device=x.device)
    _run("shrink", x, a, slots, out, add=False)
    return out


def expand(y: torch.Tensor, h: torch.Tensor, slots: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Add ``h B_s^T`` to y [T, out], in place: h [T, rank], slots int32 [T] (-1: none), b [slots, out, rank].

    Rows of ``y`` may be part of wider ones, as the share of one projection in a fused one is.
    """
    _run("expand", h, b, slots, y, add=True)
    return y


class AddAdapters(Kernel):
    """``lsv_runtime.adapters.slots.AdapterSlots``: adds to y in place, with a launch for all that goes in and one for
    each part that comes out.
    """

    def __init__(self, module: AdapterSlots, spec: OpSpec) -> None:
        self._module = module

    def forward(self, y: torch.Tensor, x: torch.Tensor, tokens: TokenAdapters) -> torch.Tensor:
        module, y = self._module, y.contiguous()
        b, rank = module.get_buffer("b").mT, module.rank
        low = shrink(x.reshape(-1, x.shape[-1]), tokens.slots, module.get_buffer("a").flatten(1, 2))
        rows = y.view(-1, y.shape[-1])
        module.rescale_rows(rows, tokens)
        for source, start, stop in module.parts:
            expand(rows[:, start:stop], low[:, source * rank : (source + 1) * rank], tokens.slots, b[:, start:stop])
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
    outputs, inputs = weights.shape[1:]
    tile = launch(op, x.device)
    many = min(tile["outputs"], triton.next_power_of_2(outputs))
    _project[(len(x), triton.cdiv(outputs, many))](
        x, weights, slots, out, inputs, outputs, x.stride(0), out.stride(0), *weights.stride(),
        ADD=add, OUTPUTS=many, INPUTS=min(tile["inputs"], triton.next_power_of_2(inputs)), num_warps=tile.warps,
    )  # fmt: skip
