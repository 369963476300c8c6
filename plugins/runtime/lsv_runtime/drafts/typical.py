"""Typical acceptance: a draft counts where it is likely enough, whatever else would have been drawn.

Cai et al., "Medusa" (2024), section 3.3.1. It saves steps where many tokens would do, and answers are no longer
those of the model's own distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST = 1e-5
"""What is added to likelihoods before the logarithm."""


def is_typical(likelihoods: Tensor, drafts: Tensor, threshold: float, alpha: float) -> Tensor:
    """bool [rows]: whether a draft, int64 [rows], is likelier than ``threshold`` or than ``alpha`` times e to the minus
    entropy, whichever is less. ``likelihoods`` float32 [rows, vocabulary].
    """
    entropy = -(likelihoods * torch.log(likelihoods + _LEAST)).sum(dim=-1)
    own = likelihoods.gather(-1, drafts.unsqueeze(-1)).squeeze(-1)
    return own > torch.clamp(alpha * torch.exp(-entropy), max=threshold)
