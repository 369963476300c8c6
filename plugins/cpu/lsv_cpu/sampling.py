"""Choosing and describing tokens straight on the logits, in their own dtype; see native/sample.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import torch

from lsv.nn.sampling import Choices, Choose, Describe, Edits, Int64s
from lsv.offers import OpSpec
from lsv_cpu import native
from lsv_cpu.kernels import selected_library

_INT, _INT64, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
_ARGUMENTS: Mapping[str, list[type]] = {
    "lsv_choose": [_INT, _POINTER, _INT64, _INT64, _INT64, _POINTER, _POINTER, _POINTER],
    "lsv_describe": [_INT, _POINTER, _INT64, _INT64, _INT64, _POINTER, _POINTER, _INT64, _POINTER],
}


class NativeChoose:
    """``lsv.nn.sampling.Choose``; the same tokens to the bit, whatever the team and the instruction set."""

    def __init__(self, module: Choose, spec: OpSpec) -> None:
        self._library = _library()

    def forward(self, logits: torch.Tensor, choices: Choices, edits: Edits) -> torch.Tensor:
        logits = _dense(logits)
        tokens = torch.empty(len(choices), dtype=torch.int64)
        self._library.lsv_choose(
            native.DTYPES[logits.dtype],
            logits.data_ptr(),
            logits.stride(0),
            logits.shape[1],
            len(choices),
            choices.ctypes.data,
            edits.ctypes.data,
            tokens.data_ptr(),
        )
        return tokens


class NativeDescribe:
    """``lsv.nn.sampling.Describe``, without a vocabulary of log probabilities and without sorting one."""

    def __init__(self, module: Describe, spec: OpSpec) -> None:
        self._library = _library()

    def forward(self, logits: torch.Tensor, rows: Int64s, chosen: Int64s, most: int) -> torch.Tensor:
        logits = _dense(logits)
        most = min(most, logits.shape[1])
        found = torch.empty((len(rows), 1 + most, 3), dtype=torch.float64)
        self._library.lsv_describe(
            native.DTYPES[logits.dtype],
            logits.data_ptr(),
            logits.stride(0),
            logits.shape[1],
            len(rows),
            rows.ctypes.data,
            chosen.ctypes.data,
            most,
            found.data_ptr(),
        )
        return found


def _library() -> ctypes.CDLL:
    library = selected_library()
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


def _dense(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.stride(1) == 1 else logits.contiguous()
