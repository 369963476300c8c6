"""What transformers itself says of a tiny checkpoint: the log probabilities of its forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import transformers

from lsv_doctor.models.comparing import TIE
from lsv_doctor.models.mending import mend

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Tokens = Sequence[int]
PREFIXED = ("paligemma",)
"""By ``model_type``: models whose processors say that the tokens of a prompt see one another."""


class Reference:
    """A model of transformers, asked for whole sequences at a time, without a cache; where tokens see those behind
    them, for every beginning by itself, as ``generate()`` asks.

    ``encoder`` is what its encoder reads, for those that have one. ``start`` is how many of the tokens are a prompt; it
    matters for models whose prompts see one another.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._has_prefix = getattr(getattr(model, "config", None), "model_type", "") in PREFIXED
        self._looks_ahead: bool | None = None
        self._next: dict[tuple[int, ...], torch.Tensor] = {}
        self.mended = mend(model)
        """What transformers computes otherwise than its checkpoints were trained for; empty for nothing."""

    @torch.inference_mode()
    def log_probabilities(self, ids: Tokens, encoder: Tokens = (), start: int = 0) -> torch.Tensor:
        """float32 [length, vocabulary]: of the token after each."""
        if encoder:
            read, given = torch.tensor([list(encoder)]), torch.tensor([list(ids)])
            logits = self._model(input_ids=read, decoder_input_ids=given, use_cache=False).logits[0]
        elif self._has_prefix:
            logits = self._after_prefix(ids, start or len(ids))
        elif self._sees_later(ids):
            logits = torch.stack([self._after(tuple(ids[:count])) for count in range(1, len(ids) + 1)])
        else:
            logits = self._whole(ids)
        return torch.log_softmax(logits.float(), dim=-1)

    def _whole(self, ids: Tokens) -> torch.Tensor:
        return self._model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]  # type: ignore[no-any-return]

    def _after_prefix(self, ids: Tokens, start: int) -> torch.Tensor:
        given = torch.tensor([list(ids)])
        kinds = (torch.arange(len(ids)) >= start).long()[None]
        return self._model(input_ids=given, token_type_ids=kinds, use_cache=False).logits[0]  # type: ignore[no-any-return]

    def _sees_later(self, ids: Tokens) -> bool:
        """Whether what comes of a token depends on those behind it; found out on the first text, and on its last token
        many times: which of equal ones are chosen may depend on how many there are.
        """
        if self._looks_ahead is None:
            ids = [*ids, *[ids[-1]] * len(ids)]
            whole = self._whole(ids)
            alone = torch.stack([self._whole(ids[:count])[-1] for count in range(1, len(ids) + 1)])
            self._looks_ahead = bool((whole - alone).abs().max() > TIE * max(1.0, float(alone.abs().max())))
        return self._looks_ahead

    def _after(self, ids: tuple[int, ...]) -> torch.Tensor:
        """The logits [vocabulary] of the token after some."""
        if ids not in self._next:
            given = self._model.prepare_inputs_for_generation(torch.tensor([ids]), use_cache=False)
            self._next[ids] = self._model(**given).logits[0, -1]
        return self._next[ids]

    def contradiction(self, prompt: Tokens, count: int, encoder: Tokens = ()) -> str:
        """Where its own ``generate()``, which caches, goes another way than its forward pass; empty when nowhere."""
        try:
            answer = self._generate(prompt, count, encoder)
        except Exception as error:
            return f"transformers' own generate() fails ({type(error).__name__})"
        expected = self.log_probabilities([*prompt, *answer], encoder, len(prompt))[len(prompt) - 1 : -1]
        gap = max((float(row.max() - row[token]) for row, token in zip(expected, answer, strict=True)), default=0.0)
        return f"transformers' own generate() differs from its forward pass by {gap:.1e}" if gap > TIE else ""

    @torch.inference_mode()
    def _generate(self, prompt: Tokens, count: int, encoder: Tokens) -> list[int]:
        ids = torch.tensor([list(prompt)])
        make: Any = transformers.GenerationConfig
        # the family's own may force or forbid tokens
        self._model.generation_config = make(pad_token_id=0, decoder_start_token_id=prompt[0])
        settings: dict[str, Any] = {"max_new_tokens": count, "do_sample": False}
        if self._has_prefix:
            settings["token_type_ids"] = torch.zeros_like(ids)
        if not encoder:
            found = self._model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        else:
            found = self._model.generate(torch.tensor([list(encoder)]), decoder_input_ids=ids, **settings)
        return [int(token) for token in found[0, len(prompt) :]]
