"""What transformers itself says of a tiny checkpoint: the log probabilities of its forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from lsv_doctor.models.comparing import TIE

Tokens = Sequence[int]


class Reference:
    """A model of transformers, asked for whole sequences at a time, without a cache.

    ``encoder`` is the prompt of its encoder, for those that have one.
    """

    def __init__(self, model: PreTrainedModel, encoder: Tokens = ()) -> None:
        self._model: Any = model
        self._encoder = torch.tensor([list(encoder)]) if encoder else None

    @torch.inference_mode()
    def log_probabilities(self, ids: Tokens) -> torch.Tensor:
        """float32 [length, vocabulary]: of the token after each."""
        given = torch.tensor([list(ids)])
        if self._encoder is None:
            logits = self._model(given, use_cache=False).logits[0]
        else:
            logits = self._model(input_ids=self._encoder, decoder_input_ids=given, use_cache=False).logits[0]
        return torch.log_softmax(logits.float(), dim=-1)

    def contradiction(self, prompt: Tokens, count: int) -> str:
        """Where its own ``generate()``, which caches, goes another way than its forward pass; empty when nowhere."""
        try:
            answer = self._generate(prompt, count)
        except Exception as error:
            return f"transformers' own generate() fails ({type(error).__name__})"
        expected = self.log_probabilities([*prompt, *answer])[len(prompt) - 1 : -1]
        gap = max((float(row.max() - row[token]) for row, token in zip(expected, answer, strict=True)), default=0.0)
        return f"transformers' own generate() differs from its forward pass by {gap:.1e}" if gap > TIE else ""

    @torch.inference_mode()
    def _generate(self, prompt: Tokens, count: int) -> list[int]:
        ids = torch.tensor([list(prompt)])
        make: Any = GenerationConfig
        self._model.generation_config = make(pad_token_id=0)  # the family's own may force or forbid tokens
        settings = {"max_new_tokens": count, "do_sample": False}
        if self._encoder is None:
            found = self._model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        else:
            found = self._model.generate(self._encoder, decoder_input_ids=ids, **settings)
        return [int(token) for token in found[0, len(prompt) :]]
