"""Choosing and describing tokens directly on the logits, in their own dtype; see native/sampling/sample.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lsv.offers import OpSpec
from lsv_cpu import native
from lsv_cpu.kernels import selected_library
from lsv_runtime.nn.sampling import CHOICE, EDIT, Choices, Choose, Describe, Edits
from lsv_runtime.ops import Kernel

_INT, _INT64, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
_ARGUMENTS: Mapping[str, list[type]] = {
    "lsv_choose": [_INT, _POINTER, _INT64, _INT64, _INT64, _POINTER, _POINTER, _POINTER],
    "lsv_describe": [_INT, _POINTER, _INT64, _INT64, _INT64, _POINTER, _POINTER, _INT64, _POINTER],
}


class NativeChoose(Kernel):
    """``lsv_runtime.nn.sampling.Choose``, with exactly the same tokens whatever the thread team and the instruction
    set.
    """

    def __init__(self, module: Choose, spec: OpSpec) -> None:
        self._library = _library()

    def forward(self, logits: torch.Tensor, choices: Choices, edits: Edits) -> torch.Tensor:
        logits = _dense(logits)
        tokens = torch.empty(len(choices), dtype=torch.int64)
        status = self._library.lsv_choose(
            native.DTYPES[logits.dtype],
            logits.data_ptr(),
            logits.stride(0),
            logits.shape[1],
            len(choices),
            choices.ctypes.data,
            edits.ctypes.data,
            tokens.data_ptr(),
        )
        if status:
            raise native.refusal(status)
        return tokens


class NativeDescribe(Kernel):
    """``lsv_runtime.nn.sampling.Describe``, without computing the log probabilities of the whole vocabulary or sorting
    them.
    """

    def __init__(self, module: Describe, spec: OpSpec) -> None:
        self._library = _library()

    def forward(self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, most: int) -> torch.Tensor:
        logits = _dense(logits)
        most = min(most, logits.shape[1])
        found = torch.empty((len(rows), 2 + most, 3), dtype=torch.int64)
        status = self._library.lsv_describe(
            native.DTYPES[logits.dtype],
            logits.data_ptr(),
            logits.stride(0),
            logits.shape[1],
            len(rows),
            rows.data_ptr(),
            tokens.data_ptr(),
            most,
            found.data_ptr(),
        )
        if status:
            raise native.refusal(status)
        return found


def _library() -> ctypes.CDLL:
    library = selected_library()
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _INT
    for name, record in (("choice", CHOICE), ("edit", EDIT)):
        function = getattr(library, f"lsv_{name}_layout")
        function.argtypes, function.restype = [], ctypes.c_char_p
        check_layout(name, record, function().decode())
    return library


def check_layout(name: str, record: np.dtype[Any], found: str) -> None:
    """Raise ``AssertionError`` unless native code finds the fields of a record where numpy has them."""
    expected = layout_of(record)
    if found != expected:
        raise AssertionError(
            f"struct {name.title()} of native/sampling/sample.cpp is not {name.upper()} of lsv_runtime/nn/sampling.py: "
            f'it is "{found}", expected "{expected}"'
        )


def layout_of(record: np.dtype[Any]) -> str:
    """The fields of a record in their order, with type and offset, and its size: ``rate:f4@0 only:i4@4 8``."""
    assert record.fields is not None
    fields = ((name, *record.fields[name][:2]) for name in record.names or ())
    texts = (f"{name}:{dtype.kind}{dtype.itemsize}@{offset}" for name, dtype, offset in fields)
    return " ".join([*texts, str(record.itemsize)])


def _dense(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.stride(1) == 1 else logits.contiguous()
