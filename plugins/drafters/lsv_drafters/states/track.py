"""What a drafter that reads states has seen of a sequence, and how far it has got with it."""

from __future__ import annotations

import torch
from torch import Tensor

from lsv_drafters.model.kept import Kept


class Track(Kept):
    """The tokens from ``begin`` on whose states were seen, one after the other.

    The first ``done`` of them are in the drafter's cache, from its beginning on: what came before ``begin``
    was found in the model's prefix cache and is not known here. The states of the others wait.
    """

    __slots__ = ("begin", "done", "waiting")

    def __init__(self, groups: int) -> None:
        super().__init__(groups)
        self.begin = self.done = 0
        self.waiting: list[Tensor] = []

    @property
    def behind(self) -> int:
        """How many tokens wait to be computed."""
        return sum(len(part) for part in self.waiting)

    @property
    def end(self) -> int:
        """The place of the token whose states come next."""
        return self.begin + self.done + self.behind

    def add(self, start: int, states: Tensor) -> None:
        """States of the tokens from ``start`` on. Where some in between were not seen, the sequence begins anew."""
        if start != self.end:
            self.forget()
            self.begin = start
        self.waiting.append(states)

    def take(self, count: int) -> Tensor:
        """The states of the first ``count`` tokens that wait; from now on they count as computed."""
        states = self.waiting[0] if len(self.waiting) == 1 else torch.cat(self.waiting)
        self.waiting = [states[count:]] if count < len(states) else []
        self.done += count
        return states[:count]

    def forget(self) -> None:
        super().forget()
        self.begin = self.done = 0
        self.waiting.clear()
