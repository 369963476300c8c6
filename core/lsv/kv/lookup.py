"""The cached prefix of a request that waits, kept true while other requests' blocks come and go."""

from __future__ import annotations

from collections.abc import Collection

import msgspec


class Match(msgspec.Struct, frozen=True):
    """The longest prefix of a request that is in the cache."""

    tokens: int
    """Its length, a whole number of blocks."""
    blocks: tuple[list[int], ...]
    """Its blocks by cohort, laid out as in ``Table.blocks``; null blocks where the cohort's window needs none."""
    cross: tuple[list[int], ...] = ()
    """The blocks of the cross cohorts, if these hold the request's media item; else empty."""
    missing: tuple[tuple[int, int], ...] = ()
    """Contents that the device does not hold, but a tier behind it: cohort and column. They have null blocks."""
    behind: int = 0
    """How many of the tokens there would not be without these."""


class Lookup:
    """What was found for one request. The pool tells it of changes, so that a plan need not look it all up again.

    A block that goes can only shorten the prefix. A key that comes may lengthen it: then all is looked up anew.
    """

    __slots__ = ("_keys", "_others", "_places", "in_use", "length", "limit", "match", "outdated", "stale")

    def __init__(self, limit: int, match: Match, length: int, keys: Collection[bytes]) -> None:
        self.limit = limit
        self.match = match
        self.length = length
        """At most so many blocks long is the prefix by now."""
        self.in_use = 0
        """How many blocks of the match others use, of the cohorts that keep all tokens."""
        self.stale = True
        """Whether ``match`` is too long, or other blocks of it than those have come into use or out of it."""
        self.outdated = False
        """Whether the prefix may be longer."""
        self._keys = keys
        self._places: dict[int, int] = {}
        self._others: Collection[int] = ()

    def follow(self, block: int, place: int, used: int) -> None:
        """Watch the block at a place of a cohort that keeps all tokens; ``used`` is how many of its bundle are."""
        self._places[block] = place
        self.in_use += used

    def drop(self, block: int) -> bool:
        """The prefix has become too short for the block; False if that is because this block is no longer cached."""
        return self._places.pop(block, None) is not None

    def renew(self, match: Match, others: Collection[int]) -> None:
        """``match`` is true again; ``others`` are its blocks of windowed and cross cohorts."""
        self.match, self._others = match, others
        self.stale = False

    # What the pool tells; blocks are the first ones of their bundles

    def note_evicted(self, block: int) -> None:
        """Its content can't be found any more."""
        place = self._places.pop(block, None)
        if place is not None:
            self.length = min(self.length, place)
        self.stale = self.stale or place is not None or block in self._others

    def note_use(self, block: int, change: int) -> None:
        """So many blocks of a bundle have come into use, or out of it where ``change`` is negative."""
        if block in self._places:
            self.in_use += change
        elif block in self._others:
            self.stale = True

    def note_key(self, key: bytes) -> None:
        """It can be found from now on."""
        if key in self._keys:
            self.outdated = True
