"""Sigmoid and softplus of which each row has the same bits in any batch.

On a CPU torch computes its own by whole vectors, and what is left at the end of a tensor by another function
(``vectorized_loop`` of ATen). So where a row is no multiple of 16 numbers, its last bits depend on how many rows there
are. The functions that these are made of have no such rest.

Use them for numbers of which a row has few: one for each head, each expert, or the token.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """``torch.sigmoid``, in the dtype of ``x``."""
    if not x.is_cpu:
        return torch.sigmoid(x)
    return (-x.float()).exp().add_(1).reciprocal_().to(x.dtype)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """``log(1 + exp(x))`` of float32."""
    if not x.is_cpu:
        return functional.softplus(x)
    return x.abs().neg_().exp_().log1p_().add_(x.clamp(min=0))
