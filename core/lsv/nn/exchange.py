"""Tokens on their way to the experts of other replicas, and what these have made of them on its way back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

from lsv.platform import Communicator

_NEWS_SECONDS = 5.0
"""In which it is known which replica is gone, once a connection to it has broken."""


@contextmanager
def others_named() -> Iterator[None]:
    """Where replicas fail together since one is gone, those who know which end this process, with an error that names
    it: what fails here waits for that.
    """
    try:
        yield
    except RuntimeError:
        time.sleep(_NEWS_SECONDS)
        raise


class TokenExchange:
    """Between the ranks of replicas that share the experts of some layers; those of one follow each other, and have the
    same tokens.

    All ranks ``begin`` each step. In each mixture they ``gather`` everybody's tokens, compute what their own experts
    make of them, and ``add_up``. Sums are made in rank order, so other replicas' tokens change no bit of a row.
    """

    def __init__(self, communicator: Communicator, ranks: int, device: torch.device) -> None:
        """``ranks`` are those of one replica."""
        self.communicator = communicator
        self._ranks, self._device = ranks, device
        self._replica = communicator.group.rank // ranks
        self._counts: list[int] = []

    def begin(self, tokens: int) -> bool:
        """This replica has so many tokens in the step that begins; whether any has some."""
        mine = torch.tensor([tokens], device=self._device)
        with others_named():
            self._counts = self.communicator.all_gather(mine, 0)[:: self._ranks].tolist()
        return any(self._counts)

    def gather(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [T, width], weights [T, top] of its dtype and int64 ids [T, top], of this replica's tokens -> those of all
        replicas, one after the other.
        """
        count = self._counts[self._replica]
        if len(x) != count or weights.dtype != x.dtype:
            raise RuntimeError(
                f"experts were given {len(x)} tokens and weights of {weights.dtype} in a step of {count} tokens of "
                f"{x.dtype}: this model can't share experts between replicas"
            )
        ids = experts.to(torch.int32).view(x.dtype)  # only bytes travel
        sizes = [x.shape[1], weights.shape[1], ids.shape[1]]
        packed = functional.pad(torch.cat((x, weights, ids), dim=1), (0, 0, 0, max(self._counts) - count))
        with others_named():
            every = self.communicator.all_gather(packed, 0).view(self.communicator.group.size, *packed.shape)
        parts = zip(every[:: self._ranks], self._counts, strict=True)
        tokens, shares, chosen = torch.split(torch.cat([part[:count] for part, count in parts]), sizes, dim=1)
        return tokens.contiguous(), shares.contiguous(), chosen.contiguous().view(torch.int32).long()

    def add_up(self, y: torch.Tensor) -> torch.Tensor:
        """What this rank's experts add to the tokens of all replicas [T', width] -> the sum over all ranks for this
        replica's own [T, width].
        """
        first = sum(self._counts[: self._replica])
        with others_named():
            return self.communicator.all_reduce(y)[first : first + self._counts[self._replica]]
