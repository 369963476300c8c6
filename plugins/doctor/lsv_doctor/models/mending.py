"""What classes of transformers compute otherwise than their checkpoints were trained for, put right for comparing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def mend(model: PreTrainedModel) -> str:
    """Put a model right in place; what was wrong with it, in words, or empty."""
    wrong = ""
    module: Any
    for module in model.modules():
        name = type(module).__name__
        if name == "NllbMoeExperts":
            module.forward = _mix.__get__(module)
            wrong = "transformers' own experts but the first two are never asked"
        elif name == "BigBirdPegasusEncoder":
            module.register_forward_pre_hook(_forget)
            wrong = "transformers' own encoder reads long texts otherwise once it has read a short one"
        elif name == "ProphetNetNgramSelfAttention":
            module.get_predict_relative_pos_embeddings = partial(_find_biases, module)
            wrong = "transformers' own biases are those of other tokens and heads where it has several tokens"
        elif name == "NemotronHMamba2Mixer":
            module.time_step_limit = tuple(module.config.time_step_limit)
            wrong = "transformers' own time steps have a lower bound in prompts alone, and not time_step_limit"
    return wrong


def _find_biases(attention: Any, x: torch.Tensor, scores: torch.Tensor, places: Any, buckets: Any) -> torch.Tensor:
    """ProphetNet's biases of queries x [1, T, streams, hidden], as the class finds them for one token, in their order
    for many: ``buckets`` [1, T, keys] -> [1, streams, heads, T, keys].
    """
    if buckets is None:
        return type(attention).get_predict_relative_pos_embeddings(attention, x, scores, places, None)  # type: ignore[no-any-return]
    biases = attention.relative_pos_embeddings(x).unflatten(-1, (attention.num_buckets, -1)).permute(0, 2, 4, 1, 3)
    index = buckets.long()[:, None, None].expand(*biases.shape[:3], -1, -1)
    return biases.gather(-1, index)  # type: ignore[no-any-return]


def _forget(encoder: Any, given: Any) -> None:
    """A short text takes the blocks of attention away from an encoder for good."""
    encoder.set_attention_type(encoder.config.attention_type)


def _mix(self: Any, x: torch.Tensor, first: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """NLLB's experts as they were until transformers 5, which takes the mask of every token's ``first`` expert for the
    number of one: x [T, hidden] and weights [T, experts] -> [T, hidden].
    """
    y = torch.zeros_like(x)
    for number in range(self.num_experts):
        rows = weights[:, number].nonzero()[:, 0]
        y[rows] += self[f"expert_{number}"](x[rows]) * weights[rows, number, None] * (1 - self.moe_token_dropout)
    return y
