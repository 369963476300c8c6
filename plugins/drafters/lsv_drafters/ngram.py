"""Prompt lookup: what followed the last few tokens when they stood in the sequence before.

Saxena, "Prompt Lookup Decoding" (2023). Answers that repeat their prompt, as summaries, edits of code and quotes do,
are drafted for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lsv.config import Drafts
from lsv_base.errors import ConfigError
from lsv_runtime.drafts.drafter import Draftable, Drafter

_LONGEST, _SHORTEST = 5, 2
_LOOKED_AT = 16
"""Places where the last tokens stood before, from the latest on, among which the longest run is looked for."""
_INDEX = "ngram"


class NgramDrafter(Drafter):
    """Looks for the longest run of last tokens, of ``prompt_lookup_min`` to ``prompt_lookup_max``, that came before."""

    def __init__(self, drafts: Drafts) -> None:
        self.shortest, self.longest = read_lengths(drafts.options)

    def propose(self, sequences: Sequence[Draftable]) -> list[list[int]]:
        return [self._index(one).follow(one.most) for one in sequences]

    def _index(self, one: Draftable) -> NgramIndex:
        index: NgramIndex | None = one.memory.get(_INDEX)
        if index is None:
            index = one.memory[_INDEX] = NgramIndex(self.shortest, self.longest)
        index.extend(one.ids[len(index) :].tolist())
        return index


class NgramIndex:
    """A growing sequence that knows where its last tokens stood before."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest, self._longest = shortest, longest
        self._tokens: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}  # by ``shortest`` tokens, the latest place that follows them
        self._before: list[int] = []  # by place, the one before it that follows the same ``shortest`` tokens; or 0

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    def extend(self, tokens: Sequence[int]) -> None:
        """The sequence goes on with ``tokens``."""
        known, latest, before, shortest = self._tokens, self._latest, self._before, self._shortest
        for token in tokens:
            place = len(known)
            if place >= shortest:
                run = tuple(known[-shortest:])
                before.append(latest.get(run, 0))
                latest[run] = place
            else:
                before.append(0)
            known.append(token)

    def follow(self, most: int) -> list[int]:
        """What followed the longest run, of several the latest, of last tokens that came before; at most ``most``.

        Where that runs into the end it goes on from its own beginning: the sequence repeats itself.
        """
        begin = self._find()
        if not begin:
            return []
        found = self._tokens[begin : begin + most]
        while len(found) < most:
            found += found[: most - len(found)]
        return found

    def _find(self) -> int:
        """The place that follows the longest run; 0 where there is none."""
        best = longest = 0
        for place, length in self.runs(self._tokens):
            if length > longest:
                best, longest = place, length
                if longest == self._longest:
                    break
        return best

    def runs(self, tail: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The latest places that follow the last tokens of ``tail``, and how many of these stand before each."""
        place = self._latest.get(tuple(tail[-self._shortest :]), 0)
        for _ in range(_LOOKED_AT):
            if not place:
                return
            yield place, self._length(place, tail)
            place = self._before[place]

    def _length(self, place: int, tail: Sequence[int]) -> int:
        """How many tokens before ``place`` are the last ones of ``tail``, from ``shortest`` to ``longest``."""
        tokens, length = self._tokens, self._shortest
        most = min(self._longest, place, len(tail))
        while length < most and tokens[place - 1 - length] == tail[-1 - length]:
            length += 1
        return length


def read_lengths(options: Mapping[str, Any]) -> tuple[int, int]:
    """The shortest and the longest run. Given one of them alone, the other does not contradict it."""
    shortest, longest = options.get("prompt_lookup_min"), options.get("prompt_lookup_max")
    if any(isinstance(one, bool) or not isinstance(one, int | None) for one in (shortest, longest)):
        raise ConfigError(
            "speculative_config: prompt_lookup_min and prompt_lookup_max must be whole numbers",
            param="speculative_config",
        )
    longest = max(_LONGEST, shortest or 0) if longest is None else longest
    shortest = min(_SHORTEST, longest) if shortest is None else shortest
    if not 1 <= shortest <= longest:
        raise ConfigError(
            f"speculative_config: prompt_lookup_min={shortest} and prompt_lookup_max={longest} must be at least 1, and "
            "the first no more than the second",
            param="speculative_config",
        )
    return shortest, longest
