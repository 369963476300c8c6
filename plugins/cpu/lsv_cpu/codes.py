"""Keys and values in 8 bits, in plain torch: the formats of native/attention/codes.h."""

from __future__ import annotations

from collections.abc import Mapping

import torch

FORMS: Mapping[torch.dtype, int] = {torch.float8_e4m3fn: 1, torch.float8_e5m2: 2, torch.int8: 3}
"""``Form`` of native code, by the dtype that names it."""

_SIGN, _MAGNITUDE = 0x80, 0x7F
_SMALLEST = torch.finfo(torch.float32).tiny


def encode(x: torch.Tensor, dtype: torch.dtype, scale: float) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Heads [..., dim] as codes uint8 of the same shape: floats in units of ``scale``, int8 in units of scales float32
    [...] of its own.

    Rounds to nearest even and saturates. A NaN stays NaN in floats, and makes the scale NaN in int8.
    """
    x = x.float()
    if dtype == torch.int8:
        scales = x.abs().amax(-1) / _MAGNITUDE
        kept = (scales >= _SMALLEST)[..., None]
        rounded = torch.where(kept, x / scales[..., None], 0.0).round()
        return rounded.abs().to(torch.uint8) | x.signbit().to(torch.uint8) * _SIGN, scales
    largest = torch.finfo(dtype).max
    return (x / scale).clamp(-largest, largest).to(dtype).view(torch.uint8), None


def decode(codes: torch.Tensor, dtype: torch.dtype, scale: float, scales: torch.Tensor | None) -> torch.Tensor:
    """The numbers that codes uint8 [..., dim] stand for, float32; ``scales`` [...] are for int8."""
    if scales is None:
        return codes.view(dtype).float() * scale
    magnitude = (codes & _MAGNITUDE).float()
    return torch.where(codes >= _SIGN, -magnitude, magnitude) * scales[..., None]
