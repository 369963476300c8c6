"""How many tokens a step may still take."""

from __future__ import annotations

import msgspec


class StepCosts(msgspec.Struct, frozen=True):
    """What a policy knows of a step's cost: it may hold ``max_tokens`` in all, and with no more than
    ``quick_tokens`` of prompts it stays within the limit on the time between tokens, if there is one.
    """

    max_tokens: int
    quick_tokens: int


class StepBudget:
    """Counts down while a step is planned: ``tokens`` in all, of which at most ``prompt`` belong to prompts."""

    __slots__ = ("_whole", "prompt", "tokens")

    def __init__(self, tokens: int, prompt: int, *, chunked: bool) -> None:
        self.tokens = tokens
        self.prompt = prompt
        self._whole = not chunked

    def chunk(self, wanted: int) -> int:
        """How many of ``wanted`` prompt tokens the step can take; all or none where prompts are not chunked."""
        # A prompt that has to be taken whole would never start under a policy's smaller bound.
        left = self.tokens if self._whole else min(self.tokens, self.prompt)
        return wanted if wanted <= left else 0 if self._whole else left

    def spend(self, prompt_tokens: int) -> None:
        self.tokens -= prompt_tokens
        self.prompt -= prompt_tokens
