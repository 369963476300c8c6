"""All places of an MLP speculator in one native call: products, norms and draws."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch

from lsv.offers import OpSpec
from lsv_cpu import native
from lsv_cpu.kernels import selected_library
from lsv_cpu.layer import NormRecord
from lsv_cpu.linear import LinearRecord, OperandSizes, PanelLinear, find_operand_sizes, use_panels
from lsv_runtime.drafts.speculator import EPSILON, Choose, Place, Speculator
from lsv_runtime.nn.sampling import Choices
from lsv_runtime.ops import Kernel
from lsv_runtime.weights.quantizer import Linear


class PlaceRecord(ctypes.Structure):
    """``Place`` of native/speculator.cpp."""

    _fields_ = [
        *((name, LinearRecord) for name in ("projection", "head")),
        *((name, ctypes.c_void_p) for name in ("embedding", "shift")),
        ("norm", NormRecord),
    ]


class SpeculatorRecord(ctypes.Structure):
    """``Speculator`` of native/speculator.cpp."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("dtype", "normed")),
        *((name, ctypes.c_int64) for name in ("inner", "vocabulary")),
        ("begin", NormRecord),
        ("places", ctypes.c_void_p),
        ("operands", OperandSizes),
    ]


class NativeSpeculator(Kernel):
    """``lsv_runtime.drafts.speculator.Speculator``, with the tokens that the native sampler draws."""

    keeps_parts = True

    def __init__(self, module: Speculator, spec: OpSpec) -> None:
        self._module, self._library = module, selected_library()
        for place in module.places:
            for layer in (place.projection, place.head):
                if not isinstance(layer.kernel, PanelLinear):  # places may share it
                    use_panels(layer)
        self._dtype = module.places[0].embedding.dtype
        self._begin = torch.full((spec.shape["in"],), 1 / math.sqrt(2), dtype=self._dtype)
        self._record = SpeculatorRecord(
            native.DTYPES[self._dtype], module.normed, spec.shape["inner"], spec.shape["vocabulary"],
            NormRecord(self._begin.data_ptr(), EPSILON),
        )  # fmt: skip

    def pack(self) -> None:
        """Called once the linear layers have packed their weights."""
        places = self._places = (PlaceRecord * len(self._module.places))(*map(_describe, self._module.places))
        self._record.places = ctypes.addressof(places)
        self._record.operands = find_operand_sizes(
            layer for place in places for layer in (place.projection, place.head)
        )

    def forward(
        self, states: torch.Tensor, tokens: torch.Tensor, counts: Sequence[int], choices: Choices, choose: Choose
    ) -> torch.Tensor:
        states, tokens = states.to(self._dtype).contiguous(), tokens.contiguous()
        drawn = torch.empty(sum(counts), dtype=torch.int64)
        status = self._library.lsv_speculate(
            ctypes.byref(self._record),
            states.data_ptr(),
            tokens.data_ptr(),
            (ctypes.c_int64 * len(counts))(*counts),
            len(counts),
            choices.ctypes.data,
            drawn.data_ptr(),
        )
        if status:
            raise native.refusal(status)
        return drawn


def _describe(place: Place) -> PlaceRecord:
    return PlaceRecord(
        _panels(place.projection), _panels(place.head), place.embedding.data_ptr(), place.shift.data_ptr(),
        NormRecord(place.scale.data_ptr(), EPSILON),
    )  # fmt: skip


def _panels(layer: Linear) -> LinearRecord:
    assert isinstance(layer.kernel, PanelLinear), "another kernel was bound to a layer of the speculator's"
    return layer.kernel.record
