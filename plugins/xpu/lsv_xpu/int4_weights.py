"""Weights of 4 bits as vendors' int4 products take them: (nibble - zero) * scale, and what does not fit that apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from lsv.offers import OpSpec
from lsv_runtime.ops import Kernel

MIDDLE = 8
"""The zero of symmetric weights."""
_NEAR = 1e-3
"""How far a zero may be from an integer, in steps of the code: what float32 scales and offsets leave."""


@dataclass(frozen=True, slots=True, eq=False)
class Int4Weights:
    """weight = (nibble - zero) * scale + offset.

    nibbles uint8 [N, K / 2], of two in a byte the even input's in the low four bits; scales float32, zeros int8 (None
    for 8) and offsets float32 (None for 0) are [K / group, N]; order int32 [K], None for inputs in a row: the input
    each column of nibbles is for.
    """

    nibbles: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    offsets: torch.Tensor | None
    order: torch.Tensor | None


def take_int4(module: Any, zeros: range) -> Int4Weights:
    """The weights of a ``linear.int4`` or an evenly ``linear.coded`` layer of 4 bits, released from it.

    Zeros that are integers in ``zeros`` are given as such; where some are not, all of what they mean is in offsets.
    """
    if module.op == "linear.int4":
        return Int4Weights(module.release("nibbles"), module.release("scales").t().contiguous(), None, None, None)
    codebook, nibbles, stored = module.codebook, module.release("codes"), module.release("scales").t().contiguous()
    step = codebook.table[1] - codebook.table[0]
    scales, order = stored * step, module.order
    lift = codebook.table[0] + MIDDLE * step
    if not codebook.offsets:
        rest = stored * lift if lift else None
    else:
        rest = stored * lift + module.release("offsets").t()
    if rest is None:
        return Int4Weights(nibbles, scales, None, None, order)
    exact = torch.where(rest == 0, float(MIDDLE), MIDDLE - rest / scales)
    near = exact.round()
    if bool(((exact - near).abs() <= _NEAR).all()) and zeros.start <= near.min() and near.max() < zeros.stop:
        return Int4Weights(nibbles, scales, near.to(torch.int8), None, order)
    return Int4Weights(nibbles, scales, None, rest.contiguous(), order)


class Int4Linear(Kernel, ABC):
    """A linear layer over an int4 product of a vendor: x [..., K] in float16 or bfloat16 -> [..., N]."""

    def __init__(self, module: Any, spec: OpSpec) -> None:
        self._module = module
        self._group = spec.shape["group"] or spec.shape["in"]
        self._width: int = module.layer.width
        self._offsets: torch.Tensor | None = None
        self._order: torch.Tensor | None = None

    @abstractmethod
    def multiply(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """rows [T, K], dense -> [T, N]."""

    def keep_rest(self, weights: Int4Weights) -> None:
        """Keep what ``forward`` needs of weights beside what their product takes."""
        keep = self._module.keep
        self._offsets = None if weights.offsets is None else keep("packed_offsets", weights.offsets)
        self._order = None if weights.order is None else keep("packed_order", weights.order)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        y = self.multiply(rows, self._module.bias)
        if self._offsets is not None:
            ordered = rows if self._order is None else rows.index_select(1, self._order)
            sums = ordered.unflatten(1, (-1, self._group)).sum(-1, dtype=torch.float32)
            y = torch.addmm(y.float(), sums, self._offsets).to(x.dtype)
        return y.view(*x.shape[:-1], self._width)


def why_not_int4(spec: OpSpec) -> str | None:
    """None, or why int4 products can't serve a layer: they want 16-bit floats and groups of a multiple of 32 inputs."""
    if spec.dtype not in ("float16", "bfloat16"):
        return f"{spec.dtype} is not one of float16, bfloat16"
    if spec.shape["bits"] != 4:
        return f"codes have {spec.shape['bits']} bits, not 4"
    if spec.op == "linear.coded" and "even" not in spec.flags:
        return "the values of its codes are not evenly spaced"
    inputs, group = spec.shape["in"], spec.shape["group"] or spec.shape["in"]
    if group % 32 or inputs % group:
        return f"groups of {group} of {inputs} inputs: they must be a multiple of 32, and whole"
    return None
