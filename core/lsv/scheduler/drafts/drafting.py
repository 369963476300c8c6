"""What is drafted for one sequence, and with what luck."""

from __future__ import annotations

_TRIES = 2.0
"""What a first guess of the chance weighs."""
_SHORTEST, _LONGEST = 2, 16
"""Tokens from one guess to the next while drafts do not pay: after one that was right, and after several wrong ones."""
_MEMORY = 0.93
"""What an observation weighs after the next one: the last dozen count."""
_BRIEF = 0.8
"""The same of whether there were any drafts: look-ups find something many times in a row, or nothing."""


class Drafting:
    """The drafts that wait to be verified behind a sequence's last token, and how often such ones were right.

    A draft counts once all before it were right. ``chance`` is that of such a one; the i-th of several is right with
    ``chance ** i``.
    """

    __slots__ = ("_hits", "_tries", "is_guess", "pause", "proposed", "refused", "supply", "turn")

    def __init__(self, chance: float = 0.5, supply: float = 1.0) -> None:
        """``chance`` and ``supply`` are first guesses."""
        self._hits, self._tries = chance * _TRIES, _TRIES
        self.supply = supply
        """How often there are any drafts when they are asked for."""
        self.pause = _SHORTEST
        """While drafts do not pay, of so many tokens one is guessed."""
        self.turn = 0
        """The step from which on one may be guessed again."""
        self.is_guess = False
        """Whether what was asked for last was a guess."""
        self.proposed: tuple[int, ...] = ()
        """The ids; in the worker they lie behind the sequence's last known token."""
        self.refused = False
        """Whether another one was proposed behind these that a grammar does not allow, and that is wrong therefore."""

    @property
    def chance(self) -> float:
        return self._hits / self._tries

    def note(self, accepted: int, verified: int) -> None:
        """Of ``verified`` drafts the first ``accepted`` were right."""
        seen = accepted + (accepted < verified)
        kept = _MEMORY**seen
        self._hits = kept * self._hits + accepted
        self._tries = kept * self._tries + seen
        self.pause = _SHORTEST if accepted else min(2 * self.pause, _LONGEST)

    def note_supply(self, *, found: bool) -> None:
        """Drafts were asked for, and some were found or none."""
        self.supply = _BRIEF * self.supply + (1.0 - _BRIEF) * found
        if not found:
            self.pause = min(2 * self.pause, _LONGEST)

    def count(self, most: int, least: float) -> int:
        """How many drafts, up to ``most``, have a chance of at least ``least`` to be right."""
        chance, right, count = self.chance, 1.0, 0
        while count < most and (right := right * chance) >= least:
            count += 1
        return count

    def expect(self, count: int) -> float:
        """How many of ``count`` drafts will be right, going by the chance."""
        chance = self.chance
        return float(count) if chance >= 1.0 else chance * (1.0 - chance**count) / (1.0 - chance)
