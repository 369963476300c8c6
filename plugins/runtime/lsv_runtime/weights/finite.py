"""Weights that are not finite are refused by name: quantised, they would turn into plausible numbers."""

from __future__ import annotations

import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.ops import dtype_name

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHECKED = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
"""Without the sign, the bits of all of these are in the order of their values, infinity and NaN being the largest."""


def check_finite(name: str, values: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises ``CheckpointError`` if ``values`` of the stored tensor ``name`` hold NaN or infinity, or would in
    ``dtype``. Only the highest number is computed, from integers, which costs about as much as a copy.
    """
    if values.dtype not in _CHECKED or not values.numel():
        return
    bits = _BITS[values.dtype.itemsize]
    unsigned = (1 << (8 * values.dtype.itemsize - 1)) - 1
    largest = values.view(bits).bitwise_and(unsigned).amax().view(values.dtype).double()
    if not largest.isfinite():
        raise CheckpointError(
            f"{name} holds weights that are not finite (NaN or infinity): the checkpoint is damaged, or was not saved "
            "properly; fetch it anew, or use another one"
        )
    if dtype.is_floating_point and not largest.to(dtype).double().isfinite():
        raise CheckpointError(
            f"{name} holds weights as large as {largest.item():g}, which {dtype_name(dtype)} can't hold: "
            "choose --dtype bfloat16 or float32"
        )
