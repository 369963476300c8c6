"""Which replica a request goes to: the one that has the least to compute before it can be answered."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_OF_A_REQUEST = 128
"""Prompt tokens that a request under way counts as: an answer that grows slows all others of its replica."""


class Load(msgspec.Struct, frozen=True, gc=False):
    """A replica, as it is for one request."""

    held: int = 0
    """Tokens of the request's prompts that it has in its cache."""

    owed: int = 0
    """Tokens of other prompts that it has yet to compute."""

    depth: int = 0
    """Sequences that it computes, or that wait there."""


class Router:
    """Compares what the request would wait for, in tokens: what has been sent there and is not computed, what its own
    prompts lack in the cache, and what answers under way cost. A conversation so stays where its beginning is cached
    until that replica is so busy that computing it anew elsewhere is quicker. Equals take turns.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._last: dict[int, int] = {}
        """When each replica was chosen, by number."""

    def choose(self, loads: Mapping[int, Load]) -> int:
        """The number of one of ``loads``, of which there is at least one."""
        chosen = min(loads, key=lambda number: (self._cost(loads[number]), self._last.get(number, 0)))
        self._turn += 1
        self._last[chosen] = self._turn
        return chosen

    @staticmethod
    def _cost(load: Load) -> int:
        return load.owed - load.held + _OF_A_REQUEST * load.depth
