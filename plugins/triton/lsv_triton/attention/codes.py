"""Keys and values in 8 bits: what a cache holds, and the numbers that it stands for."""

from __future__ import annotations

import torch

LARGEST_INTEGER = 127
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""Integers with a smaller scale are all zero."""


def encode(x: torch.Tensor, dtype: torch.dtype, scale: float) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Heads [..., dim] as codes of the same shape, and for int8 their scales float32 [...].

    Floats are in units of ``scale`` and returned as uint8. Rounds to nearest even and saturates. A NaN stays NaN in
    floats, and makes the scale NaN in integers.
    """
    x = x.float()
    if dtype == torch.int8:
        scales = _divide(x.abs().amax(-1), LARGEST_INTEGER)
        kept = (scales >= SMALLEST_SCALE)[..., None]
        return torch.where(kept, x / scales[..., None], 0.0).round().to(torch.int8), scales
    largest = torch.finfo(dtype).max
    return _divide(x, scale).clamp(-largest, largest).to(dtype).view(torch.uint8), None


def _divide(x: torch.Tensor, number: float) -> torch.Tensor:
    """To the nearest, on every device: where a number is given as such, torch multiplies by its reciprocal on GPUs."""
    return x / torch.full((), number, dtype=x.dtype, device=x.device)


def decode(codes: torch.Tensor, dtype: torch.dtype, scale: float, scales: torch.Tensor | None) -> torch.Tensor:
    """The numbers that codes [..., dim] stand for, float32; ``scales`` [...] are for int8."""
    if scales is None:
        return codes.view(dtype).float() * scale
    return codes.float() * scales[..., None]
