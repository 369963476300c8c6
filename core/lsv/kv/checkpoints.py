"""Which borders of blocks are to have a checkpoint of recurrent states, from which other requests can go on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

_REMEMBERED = 1 << 16
"""Blocks of earlier prompts, 6 MiB of hashes: a million tokens in blocks of 16."""


class Branches:
    """Finds where prompts part: a prefix that came before, with another end, may come again.

    A state is as large as the K and V of hundreds of tokens, so it is not kept behind every block. The end of a prompt
    gets a checkpoint whenever it is computed, and the end of what it shares with earlier prompts from its second
    coming on.
    """

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def note(self, hashes: Sequence[bytes]) -> int:
        """A prompt of these full blocks is going to be computed; how many of its first blocks came before."""
        seen = self._seen
        known = next((place for place, one in enumerate(hashes) if one not in seen), len(hashes))
        for one in hashes:
            seen[one] = None
            seen.move_to_end(one)
        while len(seen) > self._most:
            seen.popitem(last=False)
        return known
