"""Damages a GGUF file in one place, to see whether a test notices.

A block of Q4_1 begins with its scale in float16 (ggml-common.h).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from gguf import GGUFReader


def scale_block(file: Path, target: Path, name: str, factor: float) -> None:
    """Copy a file with the scale of the first block of one Q4_1 tensor multiplied."""
    shutil.copyfile(file, target)
    (found,) = (tensor for tensor in GGUFReader(file).tensors if tensor.name == name)
    if found.tensor_type.name != "Q4_1":
        raise ValueError(f"{name} is in {found.tensor_type.name}; expected Q4_1")
    scale = np.memmap(target, np.float16, "r+", found.data_offset, (1,))
    scale[0] *= factor
    scale.flush()
