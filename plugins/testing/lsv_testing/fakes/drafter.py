"""A drafter for a real worker, of known luck: it has been told the answers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from lsv_runtime.drafts.drafter import Draftable, Drafter

Luck = Literal["right", "wrong", "mixed"]


class ForcedDrafter(Drafter):
    """Proposes what is going to be said, what certainly is not, or the first up to anywhere and then the second."""

    luck: ClassVar[Luck] = "right"
    _answers: ClassVar[tuple[tuple[int, ...], ...]] = ()

    @classmethod
    def tell(cls, answers: Iterable[Sequence[int]], luck: Luck) -> None:
        """Make these whole sequences known, prompts and answers."""
        cls._answers, cls.luck = tuple(map(tuple, answers)), luck

    def propose(self, sequences: Sequence[Draftable]) -> list[tuple[int, ...]]:
        return [self._follow(tuple(one.ids.tolist()), one.most) for one in sequences]

    def _follow(self, ids: tuple[int, ...], most: int) -> tuple[int, ...]:
        known = next((one for one in self._answers if one[: len(ids)] == ids), ids)
        right = known[len(ids) : len(ids) + most]
        rng = random.Random(len(ids))
        good = {"right": most, "wrong": 0, "mixed": rng.randint(0, most)}[self.luck]
        return tuple(token if place < good else max(token - 1, 1 - token) for place, token in enumerate(right))
