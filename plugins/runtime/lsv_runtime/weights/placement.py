"""Which rank has which experts, where ranks have whole ones: as a model declares them, and as they move later."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lsv_base.errors import ConfigError


class Placement:
    """The ranks of all experts of a model, mixture by mixture in the order in which these are declared."""

    def __init__(self, rank: int, ranks: int, given: Sequence[Sequence[int]] = ()) -> None:
        """For ``rank`` of ``ranks``. ``given`` has that of each expert, for each mixture or once for all; nothing:
        evenly, by number.
        """
        self.rank, self._ranks = rank, ranks
        self._given = given
        self._declared = 0

    def place(self, experts: int) -> tuple[int, ...]:
        """The rank of each expert of the mixture that is declared next. Raises ``ConfigError`` where there is none."""
        ranks, number, self._declared = self._ranks, self._declared, self._declared + 1
        if experts < ranks:
            raise ConfigError(
                f"{experts} experts can't be spread over {ranks} ranks: leave enable_expert_parallel out",
                param="enable_expert_parallel",
            )
        row = number if len(self._given) > 1 else 0
        if row >= len(self._given):
            return even(experts, ranks)  # nothing is given, or too little for the model: ``check`` knows for how much
        given = tuple(self._given[row])
        if len(given) != experts:
            fault = f"expert {len(given)} is missing" if len(given) < experts else f"there is no expert {experts}"
            raise ConfigError(
                f"expert_map: {fault}: mixture {number} of this model has {experts} experts, and the map has the "
                f"ranks of {len(given)}",
                param="expert_map",
            )
        return given

    def check(self) -> None:
        """Raises ``ConfigError`` where the map is for another number of mixtures than the model has."""
        if len(self._given) > 1 and len(self._given) != self._declared:
            raise ConfigError(
                f"expert_map: it has a list for each of {len(self._given)} mixtures of experts, and the model has "
                f"{self._declared} (layers without experts don't count): give one for each, or one for all",
                param="expert_map",
            )


def even(experts: int, ranks: int) -> tuple[int, ...]:
    """Experts in their order, on each rank as many as on another or one more."""
    return tuple(rank for rank in range(ranks) for _ in range(rank * experts // ranks, (rank + 1) * experts // ranks))


class Spread:
    """Where one mixture's experts are, for one of the ranks; and how many tokens chose each, where that is counted."""

    def __init__(self, owners: Sequence[int], rank: int, device: torch.device) -> None:
        """``owners`` has the rank of each expert, by number."""
        self.owners = list(owners)
        own = [number for number, owner in enumerate(owners) if owner == rank]
        self.places = {number: place for place, number in enumerate(own)}
        """By their numbers, where this rank's experts lie."""
        self.table = torch.full((len(owners) + 1,), -1, dtype=torch.int64, device=device)
        """The same for all numbers, int64 [experts + 1], always in the same place; -1 for experts of other ranks, and
        for the last number, which is nobody's.
        """
        self.table[own] = torch.arange(len(own), device=device)
        self._counts: torch.Tensor | None = None

    def start_counting(self) -> None:
        """From zero. Nobody stops: steps that are captured would go on all the same."""
        self._counts = torch.zeros_like(self.table) if self._counts is None else self._counts.zero_()

    @property
    def nobody(self) -> int:
        """The number that tokens are given which no expert is to see."""
        return len(self.owners)

    @property
    def counts(self) -> torch.Tensor | None:
        """int64 [experts], always in the same place; None where nothing is counted."""
        return None if self._counts is None else self._counts[:-1]

    def count(self, experts: torch.Tensor) -> None:
        """What a router has chosen, integers of any shape. Nothing waits for the device."""
        if self._counts is not None:
            chosen = experts.reshape(-1).long()
            self._counts.scatter_add_(0, chosen, torch.ones_like(chosen))

    def exchange(self, one: int, other: int) -> None:
        """Two experts of different ranks take each other's places. The caller moves their weights."""
        self.owners[one], self.owners[other] = self.owners[other], self.owners[one]
        for gone, came in ((one, other), (other, one)):
            if gone in self.places:
                place = self.places.pop(gone)
                self.places[came] = place
                self.table[gone], self.table[came] = -1, place
                return
