"""How many tokens a step may still take."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from lsv.capabilities import Padding


class StepCosts(msgspec.Struct, frozen=True):
    """What a policy knows of a step's cost."""

    max_tokens: int
    """Tokens that the step can hold in all."""
    quick_tokens: int
    """Prompt tokens with which it stays within the limit on the time between tokens, if there is one."""


class StepBudget:
    """Counts down while a step is planned: ``tokens`` in all, of which at most ``prompt`` belong to prompts."""

    __slots__ = ("_whole", "prompt", "tokens")

    def __init__(self, tokens: int, prompt: int, *, chunked: bool) -> None:
        self.tokens = tokens
        self.prompt = prompt
        self._whole = not chunked

    def chunk(self, wanted: int) -> int:
        """How many of ``wanted`` prompt tokens the step can take; all or none where prompts are not chunked."""
        # A prompt that must be taken whole could never start if a policy's smaller bound applied.
        left = self.tokens if self._whole else max(0, min(self.tokens, self.prompt))
        return wanted if wanted <= left else 0 if self._whole else left

    def spend(self, prompt_tokens: int) -> None:
        self.tokens -= prompt_tokens
        self.prompt -= prompt_tokens


class PaddedBudget(StepBudget):
    """For steps of prompts that are padded: all rows to the longest one, and both numbers to the sizes of ``padding``.

    A prompt is cut where a padded shape is full, so that only its last chunk is padded on its own account. A prompt
    that no padded shape can hold is computed alone, as it is.
    """

    __slots__ = ("_longest", "_padding", "_rows", "_size")

    def __init__(self, tokens: int, prompt: int, padding: Padding, *, chunked: bool) -> None:
        super().__init__(tokens, prompt, chunked=chunked)
        self._size, self._padding = tokens, padding
        self._rows = self._longest = 0

    def chunk(self, wanted: int) -> int:
        count = super().chunk(wanted)
        rows = _fitting(self._padding.rows, self._rows + 1)
        most = 0 if rows is None else _largest(self._padding.queries, self._size // rows)
        if not most or most < self._longest:  # no padded shape can take another row
            return 0 if self._rows else count
        if count == wanted <= most:
            return count
        if self._whole:
            return 0 if self._rows else count
        return _largest(self._padding.queries, min(count, most)) or min(count, most)

    def spend(self, prompt_tokens: int) -> None:
        self.prompt -= prompt_tokens
        self._rows += 1
        self._longest = max(self._longest, _fitting(self._padding.queries, prompt_tokens) or prompt_tokens)


def _fitting(sizes: tuple[int, ...], wanted: int) -> int | None:
    """The smallest of ascending ``sizes`` that holds ``wanted``."""
    place = bisect_left(sizes, wanted)
    return sizes[place] if place < len(sizes) else None


def _largest(sizes: tuple[int, ...], most: int) -> int:
    """The largest of ascending ``sizes`` that is at most ``most``; 0 if all are more."""
    return max((size for size in sizes if size <= most), default=0)
