"""Whether a device computes with 64-bit integers as it says: without that, weights of tokens overflow and draws lie.

Source: gaudi-pytorch-bridge v1.19.0 (5a56187), scripts/env_flags.yaml on PT_ENABLE_INT64_SUPPORT: where it is off,
"INT64 tensors are casted to INT32 on the device", and nothing is raised.
"""

from __future__ import annotations

import torch

from lsv_runtime.nn import sample_ops

_TOKENS = 8
_WEIGHTS = [1 << 40 - token for token in range(_TOKENS)]
"""Of logits 0, -1, -2 … where each is half as likely as the one before; 255 * 2**33 in all."""
_DRAWS = {0: 0, 5 << 29: 1, 7 << 29: 2, (1 << 32) - 1: 7}
"""The token that each 32-bit fraction of all weight falls on."""
_MANY = 1024
"""More tokens than top-p looks at before it sorts."""


def are_exact(device: torch.device) -> bool:
    """Run the integer operations of sampling with numbers above 2**32 and known answers; False for any other answer.

    An operation that the device does not have counts as a wrong answer.
    """
    try:
        return _weighs(device) and _filters(device) and _draws(device) and _sorts(device)
    except RuntimeError:
        return False


def _weighs(device: torch.device) -> bool:
    """Shifts."""
    logits = -torch.arange(_TOKENS, dtype=torch.float32, device=device).unsqueeze(0)
    return sample_ops.weigh(logits, torch.ones(1, device=device)).tolist() == [_WEIGHTS]


def _filters(device: torch.device) -> bool:
    """Products, sums, running sums, searches, comparisons: three quarters of the weight, and a quarter of the best."""
    kept = sample_ops.top_p(_weights(device), _numbers([3 << 30], device)).tolist()
    likely = sample_ops.min_p(_weights(device), _numbers([1 << 30], device)).tolist()
    return kept == [_first(2)] and likely == [_first(3)]


def _draws(device: torch.device) -> bool:
    rows = _weights(device).repeat(len(_DRAWS), 1)
    return sample_ops.draw(rows, _numbers(list(_DRAWS), device)).tolist() == list(_DRAWS.values())


def _sorts(device: torch.device) -> bool:
    """Equally likely tokens all stay, whatever the fraction."""
    equal = _numbers([_WEIGHTS[0]], device).repeat(1, _MANY)
    return sample_ops.top_p(equal, _numbers([3 << 30], device)).tolist() == [_MANY * [_WEIGHTS[0]]]


def _weights(device: torch.device) -> torch.Tensor:
    return _numbers(_WEIGHTS, device).unsqueeze(0)


def _first(count: int) -> list[int]:
    return _WEIGHTS[:count] + [0] * (_TOKENS - count)


def _numbers(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64).to(device)
