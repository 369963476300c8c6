"""Weights as small codes: the one form that most low-bit formats come down to, so that a platform needs one kernel.

A weight is ``table[code] * scale + offset``, where scale and offset belong to an output and a group of inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv.offers import OpSpec
from lsv.ops import dtype_name
from lsv.weights.quantizer import Linear, LinearLayer

_CHUNK = 1 << 20
"""Weights decoded at once by the reference."""


@dataclass(frozen=True, slots=True)
class Coding:
    """What codes mean: ``table`` has the values of 16 codes (4 bits) or 256 (8 bits), exact in bfloat16 and float16.

    ``group`` inputs in a row share a scale, 0 for all inputs. With ``offsets`` each group has one of those too.
    With ``ordered`` a layer's inputs are taken in an order of its own, which makes groups of inputs that lie apart.
    """

    table: tuple[float, ...]
    group: int = 0
    offsets: bool = False
    ordered: bool = False

    @property
    def bits(self) -> int:
        """Of a code."""
        return 4 if len(self.table) == 16 else 8

    @property
    def kind(self) -> str:
        """``even`` where values rise in equal steps with the code, the name of the 8-bit float whose bits codes are, or
        ``table``.
        """
        steps = {after - before for before, after in pairwise(self.table)}
        if len(steps) == 1 and min(steps) > 0:
            return "even"
        values, codes = torch.tensor(self.table), torch.arange(len(self.table), dtype=torch.uint8)
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            if torch.equal(codes.view(dtype).float().nan_to_num(), values.nan_to_num()):
                return dtype_name(dtype)
        return "table"

    def groups(self, inputs: int) -> int:
        return -(-inputs // self.group) if self.group else 1


class CodedLinear(Linear):
    """A linear layer over codes. Formats derive from it and call ``hold`` in ``filled``.

    codes uint8 [outputs, ceil(inputs * bits / 8)], of two in a byte the even input's in the low four bits; scales
    float32 [outputs, groups]; offsets float32 [outputs, groups] or None; order int32 [inputs] or None: the input each
    column of codes is for. Products are added up in float32.
    """

    op: ClassVar[str] = "linear.coded"
    format: ClassVar[str] = "coded"
    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    order: torch.Tensor | None
    table: torch.Tensor

    def __init__(self, layer: LinearLayer, coding: Coding, bias: nn.Parameter | None) -> None:
        super().__init__(layer)
        self.coding, self.bias = coding, bias
        self.register_buffer("offsets", None)
        self.register_buffer("order", None)

    def spec(self) -> OpSpec:
        spec = super().spec()
        marks = {mark for mark in ("offsets", "ordered") if getattr(self.coding, mark)}
        shape = {**spec.shape, "bits": self.coding.bits, "group": self.coding.group}
        return OpSpec(spec.op, spec.dtype, spec.format, shape, spec.flags | marks | {self.coding.kind})

    def hold(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor | None = None,
        order: torch.Tensor | None = None,
    ) -> None:
        """Keep the layer's weights: what ``coding`` promises must be there."""
        table = torch.tensor(self.coding.table, device=codes.device)
        found = {"codes": codes, "scales": scales.float(), "offsets": offsets, "order": order, "table": table}
        for name, tensor in found.items():
            if tensor is not None:
                self.keep(name, tensor.contiguous())

    def weight(self, rows: slice = slice(None)) -> torch.Tensor:
        """Decoded weights of some outputs, float32 [outputs, inputs], inputs in their own order."""
        codes, inputs = self.codes[rows], self.layer.inputs
        if self.coding.bits == 4:
            codes = from_nibbles(codes)[..., :inputs]
        groups, group = self.coding.groups(inputs), self.coding.group or inputs
        values = functional.pad(self.table[codes.int()], (0, groups * group - inputs))
        values = values.reshape(-1, groups, group) * self.scales[rows, :, None]
        if self.offsets is not None:
            values += self.offsets[rows, :, None]
        values = values.flatten(-2)[..., :inputs]
        if self.order is None:
            return values
        return torch.empty_like(values).index_copy_(-1, self.order.long(), values)

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.float()
        y = torch.cat([functional.linear(rows, self.weight(part)) for part in self._chunks()], dim=-1)
        return (y if self.bias is None else y + self.bias.float()).to(x.dtype)

    def _chunks(self) -> Iterator[slice]:
        step = max(1, _CHUNK // self.layer.inputs)
        return (slice(first, first + step) for first in range(0, self.layer.width, step))


def to_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Codes uint8 [..., K] below 16 -> uint8 [..., ceil(K / 2)], the even one in the low four bits."""
    codes = functional.pad(codes, (0, codes.shape[-1] % 2))
    return codes[..., ::2] | codes[..., 1::2] << 4


def from_nibbles(pairs: torch.Tensor) -> torch.Tensor:
    """Bytes uint8 [..., n] -> the codes of their low and high four bits, uint8 [..., 2 * n]."""
    return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
