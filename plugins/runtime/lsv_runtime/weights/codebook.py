"""Weights as small codes into a table: the form that most low-bit formats come down to, so a platform needs one kernel.

A weight is ``table[code] * scale + offset``, where scale and offset belong to an output and a group of inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import msgspec
import torch
from torch import nn
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_runtime.ops import dtype_name
from lsv_runtime.weights.quantizer import Linear, LinearLayer

_CHUNK = 1 << 20
"""Weights decoded at once by the reference."""

ROUNDED = "rounded_tokens"
"""The mark of layers that are meant for activations in the 8-bit float of the weights (W8A8): each token is
rounded as it comes, with a scale of its own, or one for every group of inputs that weights have. A kernel may do so;
the reference leaves activations as they are.
"""


@dataclass(frozen=True, slots=True)
class Codebook:
    """What codes mean."""

    table: tuple[float, ...]
    """The values of 16 codes (4 bits) or 256 (8 bits), exact in bfloat16 and float16."""
    group: int = 0
    """How many consecutive inputs share a scale; 0 for all inputs."""
    offsets: bool = False
    """Whether each group has an offset, too."""
    ordered: bool = False
    """Whether a layer takes its inputs in an order of its own, so that a group may hold inputs that lie apart."""

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 4 if len(self.table) == 16 else 8

    @property
    def kind(self) -> str:
        """``even`` if values rise in equal steps with the code, the name of an 8-bit float if codes are its bits, else
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
        """Scales of an output that has so many inputs."""
        return -(-inputs // self.group) if self.group else 1


class CodedLinear(Linear):
    """A linear layer over codes. Formats derive from it and call ``hold`` in ``filled``.

    Products are added up in float32.
    """

    op: ClassVar[str] = "linear.coded"
    format: ClassVar[str] = "coded"
    codes: torch.Tensor
    """uint8 [outputs, ceil(inputs * bits / 8)]; two 4-bit codes share a byte, the even input's in the low four bits."""
    scales: torch.Tensor
    """float32 [outputs, groups]."""
    offsets: torch.Tensor | None
    """float32 [outputs, groups] or None."""
    order: torch.Tensor | None
    """int32 [inputs], the input that each column of codes belongs to, or None for their own order."""
    table: torch.Tensor
    """float32 [16 or 256]: the codebook's values."""
    input_bound: float = math.inf
    """With ``ROUNDED``: the largest magnitude that a token's scale covers. Larger activations are clamped to it."""

    def __init__(
        self, layer: LinearLayer, codebook: Codebook, bias: nn.Parameter | None, marks: frozenset[str] = frozenset()
    ) -> None:
        """``marks`` are flags of its spec, such as ``ROUNDED``."""
        super().__init__(layer)
        self.codebook, self.bias, self.marks = codebook, bias, marks
        self.register_buffer("offsets", None)
        self.register_buffer("order", None)

    def spec(self) -> OpSpec:
        spec = super().spec()
        marks = {mark for mark in ("offsets", "ordered") if getattr(self.codebook, mark)}
        shape = {**spec.shape, "bits": self.codebook.bits, "group": self.codebook.group}
        flags = spec.flags | marks | self.marks | {self.codebook.kind}
        return msgspec.structs.replace(spec, shape=shape, flags=flags)

    def hold(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor | None = None,
        order: torch.Tensor | None = None,
    ) -> None:
        """Keep the layer's weights; offsets and order must be given if the codebook has them."""
        table = torch.tensor(self.codebook.table, device=codes.device)
        found = {"codes": codes, "scales": scales.float(), "offsets": offsets, "order": order, "table": table}
        for name, tensor in found.items():
            if tensor is not None:
                self.keep(name, tensor.contiguous())

    def weight(self, rows: slice | torch.Tensor = slice(None)) -> torch.Tensor:
        """Decoded weights of some outputs, float32 [outputs, inputs], inputs in their own order."""
        codes = self.codes[rows]
        if self.codebook.bits == 4:
            codes = from_nibbles(codes)[..., : self.layer.inputs]
        return self.decode_codes(codes, self.scales[rows], None if self.offsets is None else self.offsets[rows])

    def decode_codes(self, codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None) -> torch.Tensor:
        """Weights of some outputs: codes uint8 [outputs, inputs], one a byte, the others float32 [outputs, groups]."""
        inputs = self.layer.inputs
        groups, group = self.codebook.groups(inputs), self.codebook.group or inputs
        values = functional.pad(self.table[codes.int()], (0, groups * group - inputs))
        values = values.reshape(-1, groups, group) * scales[..., None]
        if offsets is not None:
            values += offsets[..., None]
        values = values.flatten(-2)[..., :inputs]
        if self.order is None:
            return values
        return torch.empty_like(values).index_copy_(-1, self.order.long(), values)

    @property
    def serves_tokens(self) -> bool:
        return self.codebook.bits == 8

    def dequantise(self, rows: slice | torch.Tensor = slice(None)) -> torch.Tensor | None:
        return self.weight(rows)

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.float()
        y = torch.cat([functional.linear(rows, self.weight(part)) for part in self._chunks()], dim=-1)
        return (y if self.bias is None else y + self.bias.float()).to(x.dtype)

    def _chunks(self) -> Iterator[slice]:
        step = max(1, _CHUNK // self.layer.inputs)
        return (slice(first, first + step) for first in range(0, self.layer.width, step))


def to_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Codes uint8 [..., K] below 16 -> uint8 [..., ceil(K / 2)], even ones in the low four bits."""
    codes = functional.pad(codes, (0, codes.shape[-1] % 2))
    return codes[..., ::2] | codes[..., 1::2] << 4


def from_nibbles(pairs: torch.Tensor) -> torch.Tensor:
    """Bytes uint8 [..., n] -> the codes of their low and high four bits, uint8 [..., 2 * n]."""
    return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
