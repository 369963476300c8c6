"""Linear layers of 4-bit codes in even steps, as AWQ and GPTQ have them: decoded by ``convert_from_uint4``.

A weight is ``step * (code - 8)`` and a rest that all inputs of a group share; what the rests add is one product of the
groups' sums.
"""

from __future__ import annotations

import torch

from lsv.offers import OpSpec
from lsv_hpu import selection
from lsv_runtime import products
from lsv_runtime.ops import TableKernel
from lsv_runtime.weights.codebook import CodedLinear, from_nibbles

_MIDDLE = 8
_EIGHT_CODES = 8
"""Codes in an int32."""


class EvenInt4(TableKernel):
    """``lsv_runtime.weights.codebook.CodedLinear`` over 16 evenly spaced values; x [..., inputs].

    Where rows are looked up, scales and offsets are kept as they were, too: the product's are rounded.
    """

    def __init__(self, module: CodedLinear, spec: OpSpec) -> None:
        self._module, self._ops = module, selection.ops()
        self._groups = module.codebook.groups(module.layer.inputs)

    def packed_bytes(self) -> int:
        module, layer = self._module, self._module.layer
        scales, book = self._groups * layer.width, module.codebook
        rests = book.offsets or book.table[0] + (book.table[1] - book.table[0]) * _MIDDLE != 0
        size = (layer.inputs * layer.width + scales) // 2 + scales * layer.dtype.itemsize * (2 if rests else 1)
        exact = scales * 4 * (2 if book.offsets else 1) if module.looked_up else 0
        return size + exact + (0 if module.bias is None else module.bias.nbytes)

    def pack(self) -> None:
        module = self._module
        codes = module.release("codes")
        scales = module.scales if module.looked_up else module.release("scales")
        low, high = module.codebook.table[0], module.codebook.table[-1]
        step = (high - low) / (len(module.codebook.table) - 1)
        rest = scales * (low + step * _MIDDLE)
        if module.offsets is not None:
            rest = rest + (module.offsets if module.looked_up else module.release("offsets"))
        dtype = module.layer.dtype
        middles = torch.full((self._groups, module.layer.width), _MIDDLE, dtype=torch.uint8, device=codes.device)
        self._codes = module.keep("packed", pack_eight(from_nibbles(codes)[:, : module.layer.inputs].T))
        self._middles = module.keep("middles", pack_eight(middles))
        self._steps = module.keep("steps", (scales * step).T.to(dtype).contiguous())
        self._rests = module.keep("rests", rest.T.to(dtype).contiguous()) if bool(rest.any()) else None

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        shifts = (ids % _EIGHT_CODES * 4).to(torch.int32)
        codes = (self._codes[:, ids // _EIGHT_CODES] >> shifts & 15).T
        scales, offsets = (None if one is None else one[ids] for one in (self._module.scales, self._module.offsets))
        assert scales is not None
        return self._module.decode_codes(codes, scales, offsets).to(self._module.layer.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self._ops.from_uint4(self._codes, self._steps, self._middles, x.dtype)
        y = products.linear(x, weight.T, self._module.bias)
        if self._rests is None:
            return y
        sums = x.unflatten(-1, (self._groups, -1)).sum(-1, dtype=torch.float32).to(x.dtype)
        return y + products.matmul(sums, self._rests)


def pack_eight(codes: torch.Tensor) -> torch.Tensor:
    """uint8 below 16 [..., N] -> int32 [..., N / 8], the first of eight in the low four bits."""
    eights = codes.unflatten(-1, (-1, _EIGHT_CODES)).to(torch.int32)
    # no bit is in two of them, so the sum is as wide as they are, and no device has to have 64 bits
    return (eights << torch.arange(0, 32, 4, dtype=torch.int32, device=codes.device)).sum(-1, dtype=torch.int32)


def why_not_int4(spec: OpSpec) -> str | None:
    """None where ``convert_from_uint4`` serves a layer of codes."""
    if spec.shape["bits"] != 4 or "even" not in spec.flags:
        return "codes are not 4 bits in even steps"
    if "ordered" in spec.flags:
        return "inputs are in an order of their own"
    if spec.shape["out"] % _EIGHT_CODES:
        return f"{spec.shape['out']} outputs are no multiple of {_EIGHT_CODES}"
    if spec.shape["group"] and spec.shape["in"] % spec.shape["group"]:
        return f"{spec.shape['in']} inputs are no multiple of a group of {spec.shape['group']}"
    return None
