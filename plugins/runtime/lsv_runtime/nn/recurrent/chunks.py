"""Recurrences in chunks: within one, tokens are computed together; the state goes from chunk to chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

State = TypeVar("State")


def scan(
    compute: Callable[..., tuple[torch.Tensor, State]], size: int, state: State, *inputs: torch.Tensor
) -> tuple[torch.Tensor, State]:
    """``compute`` over chunks of at most ``size`` tokens: inputs [n, length, ...] -> [n, length, ...], and the state
    behind them.

    ``compute`` takes a state and a chunk of each input; it gives what comes of these and the state behind the chunk.
    """
    parts = []
    for chunk in zip(*(torch.split(x, size, dim=1) for x in inputs), strict=True):
        y, state = compute(state, *chunk)
        parts.append(y)
    return torch.cat(parts, dim=1), state
