"""Sigmoid and softplus that give a row the same bits in any batch.

On a CPU torch computes its own sigmoid and softplus in whole vectors, and the last few numbers of a tensor with a
different function (``vectorized_loop`` of ATen). If a row is not a multiple of 16 numbers, its bits depend on how many
rows there are. ``exp``, ``log1p`` and ``reciprocal`` do not have this problem.

Use these functions for gates: one number per head, per expert or per token.
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
